"""Carries out what the supervisor decides: several trials at once, to the end of their search."""

from __future__ import annotations

import contextlib
import select
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING

from detcore.database import DatabaseAway, Patience, ingest_spools
from detcore.delivery import tell_end_of_killed
from detcore.errors import DetcoreError
from detcore.runner._listener import TrialStatus
from detcore.runner._running import RunningTrial
from detcore.runner._supervisor import (
    Action,
    Advance,
    Advanced,
    Conclusion,
    CountRestart,
    Ending,
    Event,
    Finish,
    Record,
    Reply,
    Reported,
    Say,
    Signal,
    Start,
    State,
    Tick,
    decide,
    resume,
)
from detcore.search import Create
from detcore.types import TrialState

if TYPE_CHECKING:
    from detcore.launch import WorkerEvent
    from detcore.runner._interrupts import Interrupts, Requests
    from detcore.runner._search_log import SearchLog
    from detcore.runner._slots import Slots
    from detcore.runner._starting import TrialStarter

__all__ = ["SearchLoop"]

_WAIT_MS = 100
_TICK_EVERY_S = 0.1


class SearchLoop:
    """Trains the trials of a search, as many at once as there are slots.

    Args:
        starter: Starts the trials.
        log: The search.
        slots: The places for trials.
        interrupts: Signals of this process.
        requests: Requests of other processes.
        max_restarts: How often a trial that fails starts again.
    """

    def __init__(
        self,
        starter: TrialStarter,
        log: SearchLog,
        slots: Slots,
        *,
        interrupts: Interrupts,
        requests: Requests,
        max_restarts: int,
    ) -> None:
        self._starter = starter
        self._database = starter.database
        self._listener = starter.listener
        self._log = log
        self._slots = slots
        self._interrupts = interrupts
        self._requests = requests
        self._state = State(free=(), max_restarts=max_restarts)
        self._running: dict[int, RunningTrial] = {}
        self._ended: RunningTrial | None = None
        self._conclusion: Conclusion | None = None
        # Progress is only displayed: waiting for the records would hold up signals to the trials.
        self._once = starter.database.patient(Patience(starter.listener.notice, longest_s=0))
        self._percent = 0
        self._tick_at = 0.0

    def run(self) -> Conclusion:
        """Train until there is nothing left to do, or the run is to end.

        Raises:
            DetcoreError: If the search fails, or the records; all workers have ended then.
        """
        try:
            self._settle()
            while True:
                self._happen(*self._interrupts.observe(), *self._requests.observe())
                self._happen(Tick(time.monotonic()))
                if self._conclusion is not None:
                    return self._conclusion
                self._observe_workers()
                self._tick()
        except BaseException:
            self._abandon()
            raise

    def _settle(self) -> None:
        """Bring the records to where the log is."""
        trials = {trial.id: trial for trial in self._database.list_trials(self._experiment_id)}
        self._state, actions = resume(
            self._log.entries,
            {index: trials[trial_id] for index, trial_id in self._log.trial_ids.items()},
            max_restarts=self._state.max_restarts,
            num_places=self._slots.at_once,
        )
        for action in actions:
            self._perform(action)
        self._listener.search_progress(self._log.search.progress)

    def _observe_workers(self) -> None:
        poll = select.poll()
        for trial in self._running.values():
            poll.register(trial.workers.fileno(), select.POLLIN)
        poll.poll(_WAIT_MS)
        for trial in list(self._running.values()):
            for event in trial.workers.poll():
                self._take_event(trial, event)
            if not trial.workers.is_alive:
                self._end(trial)

    def _take_event(self, trial: RunningTrial, event: WorkerEvent) -> None:
        if event.type == "searcher_completed":
            length, metric = int(event.fields["length"]), float(event.fields["metric"])
            report = Reported(trial.index, length, metric)
            self._happen(*self._interrupts.observe(), report)
            return
        trial.note(event)
        if trial.progress is not None:
            self._show_progress(trial.progress)
        self._listener.event(trial.info, event)

    def _show_progress(self, progress: float) -> None:
        """Record how far the trial of a search of one trial is: at most once for each percent.

        Other searches know how much of them is done only when a trial has ended. Nothing is
        recorded while the database is away.
        """
        percent = int(progress * 100)
        if self._starter.plain["searcher"]["name"] == "single" and percent != self._percent:
            self._percent = percent
            with contextlib.suppress(DatabaseAway):
                self._once.set_search_progress(self._experiment_id, progress)
            self._listener.search_progress(progress)

    def _end(self, trial: RunningTrial) -> None:
        del self._running[trial.index]
        self._ended = trial
        self._release(trial)
        latest, trial_id = None, trial.info.trial_id
        if trial.ending is Ending.DAMAGED and trial.damaged is not None:
            latest = self._starter.give_up_checkpoint(trial_id, trial.damaged[0])
        elif trial.ending is Ending.CRASHED:
            latest = self._database.latest_checkpoint(trial_id)
        end = trial.describe_end(latest, now=time.monotonic())
        # Whatever signals this process may have ended the workers, too.
        self._happen(*self._interrupts.observe(), end)

    def _release(self, trial: RunningTrial) -> None:
        """Release what belongs to workers, and take in what they reported."""
        trial.close()
        if self._starter.tokens is not None:
            self._starter.tokens.revoke(trial.info.trial_id)
        ingest_spools(
            self._database,
            self._starter.environment.home,
            experiment_id=self._experiment_id,
            trial_id=trial.info.trial_id,
        )

    def _tick(self) -> None:
        now = time.monotonic()
        if now >= self._tick_at:
            self._tick_at = now + _TICK_EVERY_S
            if self._starter.tokens is not None:
                self._starter.tokens.renew()
            self._listener.tick()

    def _happen(self, *events: Event) -> None:
        """Perform what follows from events, and from the answers to questions."""
        for event in events:
            next_event: Event | None = event
            while next_event is not None:
                self._state, actions = decide(self._state, next_event)
                next_event = None
                for action in actions:
                    next_event = self._perform(action)

    def _perform(self, action: Action) -> Event | None:
        """Perform an action; return the answer to a question."""
        match action:
            case Start():
                self._start(action)
            case Reply(index, length):
                workers = self._running[index].workers
                if length is None:
                    workers.reply(type="end")
                else:
                    workers.reply(type="train", length=length)
            case Signal(index, number):
                if index in self._running:  # else they ended, and the supervisor hears it next
                    self._running[index].signal(number)
            case Record():
                self._record(action)
            case CountRestart(index):
                self._database.count_restart(self._log.trial_ids[index])
            case Say(text, None):
                self._listener.notice(text)
            case Say(text, int(index)):
                trial = self._running.get(index) or self._ended
                assert trial is not None  # it has, or just had, workers
                trial.output.say(text)
            case Finish():
                self._finish(action)
            case Advance():
                return self._advance(action)
            case Conclusion(failure=None):
                self._conclusion = action
            case Conclusion(failure=DetcoreError() as failure):
                raise failure
        return None

    def _start(self, start: Start) -> None:
        index, length, place = start
        try:
            self._running[index] = self._starter.start(
                index, self._log.trial_ids[index], length=length, place=self._slots.places[place]
            )
        except BaseException:
            self._record(Record(index, TrialState.PAUSED, None, is_new=True))
            raise

    def _record(self, record: Record) -> None:
        index, state, error, is_new = record
        log, trial_id = self._log, self._log.trial_ids[index]
        if is_new:
            self._database.set_trial_state(trial_id, state, error=error)
        planned = log.search.trials[index]
        self._listener.trial_changed(
            TrialStatus(
                trial_id=trial_id,
                index=index,
                state=state,
                hparams=planned.hparams,
                length=planned.length,
                rung=log.rungs.get(index, 0),
                metric=log.best.get(index),
                is_waiting=planned.is_waiting and not planned.is_closed,
                error=error,
            )
        )

    def _advance(self, advance: Advance) -> Event:
        event, error = advance
        try:
            operations = self._log.record(event, error=error)
        except DetcoreError as failure:
            return Advanced(event, error, None, failure=failure)
        if operations is None:
            return Advanced(event, error, None)
        self._listener.search_progress(self._log.search.progress)
        created = [self._log.trial_ids[op.trial] for op in operations if isinstance(op, Create)]
        return Advanced(event, error, operations, created)

    def _finish(self, finish: Finish) -> None:
        """Write down for observers how a trial ended whose workers could not say it themselves."""
        trial, decided = self._ended, self._state.trials[finish.trial]
        assert trial is not None  # its workers have just ended
        try:
            if not finish.starts_again:
                tell_end_of_killed(
                    Path(trial.info.trial_dir),
                    trial_id=decided.id,
                    run_id=trial.info.run_id,
                    state="INVALID_HP" if trial.is_invalid_hp else decided.state.value,
                    error=decided.error,
                )
        except (DetcoreError, OSError) as error:
            self._listener.notice(f"plugins are not told of the end of trial {decided.id}: {error}")
        trial.output.close()
        self._ended = None

    def _abandon(self) -> None:
        """End all workers at once; the run fails."""
        for trial in self._running.values():
            trial.signal(signal.SIGKILL)
        for trial in self._running.values():
            self._release(trial)
            trial.output.close()
            self._database.set_trial_state(trial.info.trial_id, TrialState.PAUSED)

    @property
    def _experiment_id(self) -> int:
        return self._starter.experiment_id
