"""Several trials at once, until their search wants no more, or somebody ends them."""

from __future__ import annotations

import dataclasses
import select
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING

from detcore.delivery import tell_end_of_killed
from detcore.errors import DetcoreError
from detcore.runner._endings import Endings
from detcore.runner._standing import Standing
from detcore.runner._stops import Stops
from detcore.search import Close, Create, Exited, Train, Validated
from detcore.types import TrialState

if TYPE_CHECKING:
    from detcore.launch import WorkerEvent
    from detcore.runner._interrupts import Interrupts, Requests
    from detcore.runner._restarts import Restarts
    from detcore.runner._running import RunningTrial
    from detcore.runner._search_log import SearchLog
    from detcore.runner._slots import Place, Slots
    from detcore.runner._starting import TrialStarter

__all__ = ["Conclusion", "SearchLoop"]

_WAIT_MS = 100
_TICK_EVERY_S = 0.1


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Conclusion:
    """How a run of an experiment ended.

    Attributes:
        state: Of the experiment.
        error: What went wrong, or None.
        was_cut_short: Whether workers were killed by a second Ctrl-C.
        is_from_outside: Whether what ended it came from outside: a signal, another process.
    """

    state: TrialState
    error: str | None = None
    was_cut_short: bool = False
    is_from_outside: bool = False


class SearchLoop:
    """Trains the trials of a search, as many at once as there are slots.

    What happens to a trial is applied to the search and logged before anything follows from it.

    Args:
        starter: Starts the trials.
        log: The search.
        slots: The places for trials.
        interrupts: Signals of this process.
        requests: What other processes ask for.
        restarts: How often, and when, a trial that fails is started again.
    """

    def __init__(
        self,
        starter: TrialStarter,
        log: SearchLog,
        slots: Slots,
        *,
        interrupts: Interrupts,
        requests: Requests,
        restarts: Restarts,
    ) -> None:
        self._starter = starter
        self._listener = starter.listener
        self._log = log
        self._slots = slots
        self._restarts = restarts
        self._running: list[RunningTrial] = []
        self._stops = Stops(interrupts, requests, listener=starter.listener)
        self._standing = Standing(starter, log)
        self._endings = Endings(starter, log, self._standing, self._stops, restarts, self._apply)
        self._tick_at = 0.0

    def run(self) -> Conclusion:
        """Train until there is nothing left to do, or the run is to end.

        Raises:
            DetcoreError: If the search fails, or the records; all workers have ended then.
        """
        try:
            self._standing.settle()
            self._stops.look(self._running)
            self._drop_unwanted()
            # A trial may wait to start again while none runs.
            while self._start_trials() or self._running:
                self._wait()
                for trial in list(self._running):
                    for event in trial.workers.poll():
                        self._told(trial, event)
                    if not trial.workers.is_alive:
                        self._running.remove(trial)
                        self._ended(trial)
                self._stops.look(self._running)
                self._drop_unwanted()
                self._tick()
        except BaseException:
            self._abandon()
            raise
        if self._stops.failure is not None:
            raise self._stops.failure
        return self._conclude()

    def _start_trials(self) -> bool:
        """Start trials while there are places; return whether one waits for its time to start."""
        if self._stops.is_stopping:
            return False
        busy = {trial.index for trial in self._running}
        kept: list[Place] = []
        try:
            for index in [*self._standing.again, *self._log.order]:
                if index in busy or index in self._standing.left_alone:
                    continue
                place = self._slots.take()
                if place is None:
                    break
                if self._restarts.is_waiting(index):
                    # Its place is kept: a search must not depend on who came in between.
                    kept.append(place)
                else:
                    self._start(index, place)
        finally:
            for place in reversed(kept):
                self._slots.give_back(place)
        return bool(kept)

    def _drop_unwanted(self) -> None:
        """End trials for good that another process asked for, and that do not run."""
        busy = {trial.index for trial in self._running}
        for index in self._stops.unwanted.keys() - busy:
            self._endings.drop(index)

    def _start(self, index: int, place: Place) -> None:
        try:
            trial = self._starter.start(
                index,
                self._log.trial_ids[index],
                length=self._log.search.trials[index].length,
                place=place,
            )
        except BaseException:
            self._slots.give_back(place)
            self._standing.record(index, TrialState.PAUSED)
            raise
        self._running.append(trial)
        self._standing.tell(index, TrialState.RUNNING)

    def _wait(self) -> None:
        poll = select.poll()
        for trial in self._running:
            poll.register(trial.workers.fileno(), select.POLLIN)
        poll.poll(_WAIT_MS)

    def _tick(self) -> None:
        now = time.monotonic()
        if now >= self._tick_at:
            self._tick_at = now + _TICK_EVERY_S
            if self._starter.tokens is not None:
                self._starter.tokens.renew()
            self._listener.tick()

    def _told(self, trial: RunningTrial, event: WorkerEvent) -> None:
        if event.type == "searcher_completed":
            self._completed(trial, int(event.fields["length"]), float(event.fields["metric"]))
            return
        trial.note(event)
        if trial.progress is not None:
            self._standing.progressed(trial.index, trial.progress)
        self._listener.event(trial.info, event)

    def _completed(self, trial: RunningTrial, length: int, metric: float) -> None:
        """A trial trained as far as it was told to; decide how it goes on."""
        self._standing.check_metric(trial)
        planned = self._log.search.trials[trial.index]
        # A trial that does its ending once more reports what is known.
        is_news = not planned.is_closed and not planned.is_waiting and planned.length == length
        if is_news:
            self._apply(Validated(trial.index, length, metric))
        goes_on = not planned.is_closed and not planned.is_waiting and planned.length > length
        if goes_on and not self._stops.is_stopping:
            trial.extended(planned.length, before=length)
            trial.workers.reply(type="train", length=planned.length)
            self._standing.tell(trial.index, TrialState.RUNNING)
        else:
            trial.was_told_end = True
            trial.workers.reply(type="end")

    def _apply(self, event: Validated | Exited, *, error: str | None = None) -> None:
        """Tell the search, and do what follows at once; what is to be trained waits its turn."""
        if self._stops.failure is not None:
            return
        try:
            operations = self._log.record(event, error=error)
        except DetcoreError as failure:
            self._stops.fail(failure, self._running)
            return
        self._standing.tell_progress()
        running = {trial.index: trial for trial in self._running}
        for operation in operations:
            if isinstance(operation, Create):
                self._standing.tell(operation.trial, TrialState.PAUSED)
            elif isinstance(operation, Close) and operation.trial != event.trial:
                if operation.trial in running:
                    if not running[operation.trial].was_told_end:
                        running[operation.trial].signal(signal.SIGINT)
                else:
                    self._standing.record(operation.trial, TrialState.COMPLETED)
            elif isinstance(operation, Train) and operation.trial not in running:
                self._standing.tell(operation.trial, TrialState.PAUSED)

    def _ended(self, trial: RunningTrial) -> None:
        trial.close()
        if self._starter.tokens is not None:
            self._starter.tokens.revoke(trial.info.trial_id)
        self._slots.give_back(trial.place)
        self._standing.take_in(trial.info.trial_id)
        self._endings.ended(trial)
        self._tell_observers(trial)
        trial.output.close()

    def _tell_observers(self, trial: RunningTrial) -> None:
        """Write down for observers how a trial ended whose workers could not say it themselves."""
        record = self._starter.database.get_trial(trial.info.trial_id)
        if record.state is TrialState.PAUSED and not self._stops.is_stopping:
            return  # it starts again
        state = "INVALID_HP" if trial.is_invalid_hp else record.state.value
        try:
            tell_end_of_killed(
                Path(trial.info.trial_dir),
                trial_id=record.id,
                run_id=trial.info.run_id,
                state=state,
                error=record.error,
            )
        except (DetcoreError, OSError) as error:
            self._listener.notice(f"plugins are not told of the end of trial {record.id}: {error}")

    def _abandon(self) -> None:
        """End all workers at once; the run fails."""
        for trial in self._running:
            trial.kill()
        for trial in self._running:
            trial.close()
            trial.output.close()
            if self._starter.tokens is not None:
                self._starter.tokens.revoke(trial.info.trial_id)
            self._standing.take_in(trial.info.trial_id)
            self._starter.database.set_trial_state(trial.info.trial_id, TrialState.PAUSED)

    def _conclude(self) -> Conclusion:
        standing, search = self._standing, self._log.search
        states = standing.states()
        failed = next(iter(reversed(standing.errors.values())), None)
        if search.is_finished and not standing.again:
            if TrialState.COMPLETED in states:
                return Conclusion(state=TrialState.COMPLETED)
            if TrialState.ERROR not in states:  # each was canceled for itself
                return Conclusion(state=TrialState.CANCELED)
            return Conclusion(state=TrialState.ERROR, error=self._summary(failed))
        if self._stops.is_canceling:
            for index, planned in enumerate(search.trials):
                if not planned.is_closed:
                    standing.record(index, TrialState.CANCELED)
            return Conclusion(state=TrialState.CANCELED)
        if standing.errors and TrialState.PAUSED not in states:
            return Conclusion(state=TrialState.ERROR, error=self._summary(failed))
        return Conclusion(
            state=TrialState.PAUSED,
            was_cut_short=self._stops.was_cut_short,
            is_from_outside=self._stops.is_stopping,
        )

    def _summary(self, error: str | None) -> str | None:
        if len(self._log.search.trials) == 1 or error is None:
            return error
        return f"no trial completed; the last one that failed: {error}"
