"""Executes the supervisor's decisions: trains several trials concurrently until the search ends."""

from __future__ import annotations

import contextlib
import select
import signal
import time
from typing import TYPE_CHECKING

from detcore.contract.errors import DatabaseError, DetcoreError, StorageFullError
from detcore.contract.values import TrialState
from detcore.log.events import CheckpointDamaged, TrialFinished
from detcore.plugins.delivery import append_to_killed
from detcore.record_descriptions import flatten
from detcore.run.experiment_control import log_trial_ends
from detcore.run.run_listener import TrialStatus
from detcore.run.running_trial import RunningTrial
from detcore.run.supervisor import (
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
    Started,
    State,
    Tick,
    decide_actions,
    resume_run,
)
from detcore.search import Create

if TYPE_CHECKING:
    from detcore.contract.values import TrialInfo
    from detcore.launch import WorkerEvent
    from detcore.run.interrupts import Interrupts, Requests
    from detcore.run.search_log import SearchLog
    from detcore.run.trial_start import Slots, TrialStarter


_WAIT_MS = 100
_TICK_INTERVAL_S = 0.1
# Minimum change of the progress that is reported to displays.
_MIN_PROGRESS = 0.001


class SearchLoop:
    """Trains the trials of a search, concurrently in all places.

    Args:
        starter: Starts the trials.
        log: The search and its log.
        slots: The places for trials.
        interrupts: Signals of this process.
        requests: Requests of other processes.
        max_restarts: Maximum number of restarts of a trial that fails.
        starts_once: Whether the trial is a script, which only the user starts again.
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
        starts_once: bool,
    ) -> None:
        self._starter = starter
        self._database = starter.database
        self._listener = starter.run.listener
        self._log = log
        self._slots = slots
        self._interrupts = interrupts
        self._requests = requests
        self._state = State(free=(), max_restarts=max_restarts, starts_once=starts_once)
        self._running: dict[int, RunningTrial] = {}
        self._ended: RunningTrial | None = None
        self._conclusion: Conclusion | None = None
        self._percent = 0
        self._reported_progress = -1.0
        self._is_metric_checked = False
        self._digests: dict[str, TrialInfo] = {}  # first trial with each digest of its reports
        self._has_warned_of_equal = False
        self._tick_at = 0.0
        self._inexact: set[str] = set()  # frameworks reported as inexact

    def run(self) -> Conclusion:
        """Train until the search is complete or the run is stopped.

        Raises:
            DetcoreError: If the search or the records fail. All workers have ended then.
        """
        try:
            self._reconcile_records()
            while True:
                self._handle_events(
                    *self._interrupts.observe_signals(), *self._requests.observe_requests()
                )
                self._handle_events(Tick(time.monotonic()))
                if self._conclusion is not None:
                    return self._conclusion
                self._observe_workers()
                self._tick_listener()
        except BaseException:
            self._kill_workers()
            raise

    def _reconcile_records(self) -> None:
        """Bring the records up to date with the search log."""
        trials = {trial.id: trial for trial in self._database.list_trials(self._experiment_id)}
        self._state, actions = resume_run(
            self._log.entries,
            {index: trials[trial_id] for index, trial_id in self._log.trial_ids.items()},
            max_restarts=self._state.max_restarts,
            num_places=self._slots.max_concurrent,
            starts_once=self._state.starts_once,
        )
        needed = {*self._state.order, *self._state.again}
        live = {
            trial_id
            for index, trial_id in self._log.trial_ids.items()
            if self._starter.has_live_workers(trials[trial_id], is_needed=index in needed)
        }
        for action in actions:
            if not (isinstance(action, Record) and self._log.trial_ids[action.trial] in live):
                self._perform_action(action)
        log_trial_ends(self._database, self._experiment_id, self._starter.storage, without=live)
        if live:  # followed before a request can end the run
            self._handle_events(Tick(time.monotonic()))
        self._report_progress()

    def _observe_workers(self) -> None:
        poll = select.poll()
        for trial in self._running.values():
            poll.register(trial.workers.fileno(), select.POLLIN)
        poll.poll(_WAIT_MS)
        for trial in list(self._running.values()):
            for event in trial.poll():
                self._handle_worker_event(trial, event)
            if not trial.workers.is_alive:
                self._end_trial(trial)

    def _handle_worker_event(self, trial: RunningTrial, event: WorkerEvent) -> None:
        if event.type == "searcher_completed":
            self._check_metric(trial)
            length, metric = int(event.fields["length"]), float(event.fields["metric"])
            report = Reported(trial.index, length, metric)
            self._handle_events(*self._interrupts.observe_signals(), report)
            return
        if event.type == "question":
            trial.workers.reply(**self._starter.answer_query(trial.info, event.fields))
            return
        if event.type == "submitted":
            self._database.set_trial_job(trial.info.trial_id, str(event.fields["job"]))
            return
        if event.type == "inexact_resume":
            self._report_inexact(str(event.fields["framework"]), str(event.fields["reason"]))
            return
        trial.note_event(event)
        if trial.progress is not None:
            self._show_progress(trial.index, trial.progress)
        self._listener.event(trial.info, event)

    def _show_progress(self, index: int, part: float) -> None:
        """Record and show the fraction of its length that a trial has trained, 0 to 1.

        The progress of the search is recorded at most once per percent.
        """
        search = self._log.search
        if not search.trials[index].is_closed:
            search.trained[index] = part
        progress = search.progress
        if int(progress * 100) != self._percent:
            self._percent = int(progress * 100)
            # Waiting for an unreachable database would delay signals to the trials.
            with contextlib.suppress(DatabaseError, StorageFullError):
                self._starter.no_wait_database.set_search_progress(self._experiment_id, progress)
        if abs(progress - self._reported_progress) >= _MIN_PROGRESS:
            self._report_progress()

    def _report_progress(self) -> None:
        """Show the progress of the search."""
        search = self._log.search
        self._reported_progress = search.progress
        self._listener.search_progress(search.progress, search.planned_length)

    def _check_metric(self, trial: RunningTrial) -> None:
        """Show a notice once if a script reports no metric named as in ``searcher.metric``.

        The search uses the value passed to ``report_completed``. Lists, the best checkpoint and the
        retention policy use the name.
        """
        metric = self._starter.config.searcher.metric
        if self._is_metric_checked or not trial.validated or not metric:
            return
        self._is_metric_checked = True
        if metric not in trial.validated:
            names = ", ".join(sorted(trial.validated))
            self._listener.notice(
                f"searcher.metric is {metric!r}, but the validations of trial "
                f"{trial.info.trial_id} report: {names}. The best trial and checkpoint are "
                "therefore unknown. Correct the name in the file, or report a metric of that name."
            )

    def _check_reports(self, trial: RunningTrial) -> None:
        """Show a notice once if trials with different hyperparameters report the same metrics."""
        digest = trial.reports_digest
        if digest is None or self._has_warned_of_equal:
            return
        first = self._digests.setdefault(digest, trial.info)
        before, after = flatten(first.hparams), flatten(trial.info.hparams)
        names = [name for name in {**before, **after} if before.get(name) != after.get(name)]
        if names:
            self._has_warned_of_equal = True
            self._listener.notice(
                f"trials {first.trial_id} and {trial.info.trial_id} differ in {', '.join(names)}, "
                "but report exactly the same metrics at the same steps. Check that the code uses "
                "these hyperparameters."
            )

    def _end_trial(self, trial: RunningTrial) -> None:
        del self._running[trial.index]
        self._ended = trial
        self._release_trial(trial)
        latest = None
        if trial.ending is Ending.DAMAGED and trial.damaged is not None:
            self._database.record_checkpoint(CheckpointDamaged(uuid=trial.damaged[0]))
        if trial.ending in (Ending.CRASHED, Ending.DAMAGED, Ending.PREEMPTED):
            latest = self._database.latest_checkpoint(trial.info.trial_id)
        if trial.early_end and not self._state.trials[trial.index].was_notified_of_end:
            trial.output.write_notice(trial.early_end)
        if trial.ending is Ending.WELL:
            self._check_reports(trial)
        end = trial.describe_end(latest, now=time.monotonic())
        # Signals are handled first, because a signal to this process may have ended the workers.
        self._handle_events(*self._interrupts.observe_signals(), end)

    def _release_trial(self, trial: RunningTrial) -> None:
        """Release the resources of workers, and ingest their remaining reports."""
        trial.close()
        for report in trial.read_reports():
            self._handle_worker_event(trial, report)
        self._starter.release_trial(trial.info)

    def _tick_listener(self) -> None:
        now = time.monotonic()
        if now >= self._tick_at:
            self._tick_at = now + _TICK_INTERVAL_S
            self._listener.tick()

    def _handle_events(self, *events: Event) -> None:
        """Perform the actions that follow from events and from answers to questions."""
        for event in events:
            next_event: Event | None = event
            while next_event is not None:
                self._state, actions = decide_actions(self._state, next_event)
                next_event = None
                for action in actions:
                    next_event = self._perform_action(action)

    def _perform_action(self, action: Action) -> Event | None:
        """Perform an action; return the answer if it is a question."""
        match action:
            case Start():
                self._start_trial(action)
            case Reply(index, length):
                self._reply_to_workers(self._running[index], length)
            case Signal(index, number):
                if (
                    index in self._running
                ):  # otherwise they have ended, which is the supervisor's next event
                    self._running[index].send_signal(number)
            case Record():
                self._record_state(action)
            case CountRestart(index):
                self._database.count_restart(self._log.trial_ids[index])
            case Say(text, None):
                self._listener.notice(text)
            case Say(text, int(index)):
                speaker = self._running.get(index) or self._ended
                assert speaker is not None  # it has, or just had, workers
                speaker.output.write_notice(text)
            case Finish():
                self._finish_trial(action)
            case Advance():
                return self._advance_search(action)
            case Conclusion(failure=None):
                self._conclusion = action
            case Conclusion(failure=DetcoreError() as failure):
                raise failure
        return None

    def _report_inexact(self, framework: str, reason: str) -> None:
        """Show once per run that a framework's trials do not resume bit for bit."""
        if framework not in self._inexact:
            self._inexact.add(framework)
            self._listener.notice(
                f"{framework}: an interrupted trial does not resume bit for bit: {reason}"
            )

    def _reply_to_workers(self, trial: RunningTrial, length: int | None) -> None:
        """Send workers their next length; None ends the training."""
        if length is None:
            trial.workers.reply(type="end")
            return
        trial.extend_length(length)
        trial.workers.reply(type="train", length=length)

    def _start_trial(self, start: Start) -> None:
        index, length, place = start
        decided = self._state.trials[index]
        try:
            trial = self._running[index] = self._starter.start_trial(
                index,
                self._log.trial_ids[index],
                length=length,
                place=self._slots.places[place],
                is_closed=decided.is_closed,
                was_complete=decided.was_complete,
            )
        except BaseException:
            self._record_state(Record(index, TrialState.PAUSED, None, is_new=True))
            raise
        self._state, _ = decide_actions(self._state, Started(index, trial.info.is_complete))

    def _record_state(self, record: Record) -> None:
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

    def _advance_search(self, advance: Advance) -> Event:
        event, error = advance
        try:
            operations = self._log.record_event(event, error=error)
        except DetcoreError as failure:
            return Advanced(event, error, None, failure=failure)
        if operations is None:
            return Advanced(event, error, None)
        self._report_progress()
        created = [self._log.trial_ids[op.trial] for op in operations if isinstance(op, Create)]
        return Advanced(event, error, operations, created)

    def _finish_trial(self, finish: Finish) -> None:
        """Log the end of a trial for observers, if its workers could not report it."""
        trial, decided = self._ended, self._state.trials[finish.trial]
        assert trial is not None  # its workers have just ended
        try:
            if not finish.starts_again:
                state = "INVALID_HP" if trial.is_invalid_hp else decided.state.value
                record = self._database.get_trial(decided.id)
                end = TrialFinished(state=state, error=decided.error)
                append_to_killed(self._database, record, end)
        except (DetcoreError, OSError) as error:
            self._listener.notice(
                f"plugins were not notified of the end of trial {decided.id}: {error}"
            )
        trial.output.close()
        self._ended = None

    def _kill_workers(self) -> None:
        """Kill all workers, because the run failed."""
        for trial in self._running.values():
            trial.send_signal(signal.SIGKILL)
        for trial in self._running.values():
            self._release_trial(trial)
            trial.output.close()
            if not self._starter.lock.is_lost:
                self._database.set_trial_state(trial.info.trial_id, TrialState.PAUSED)

    @property
    def _experiment_id(self) -> int:
        return self._starter.experiment_id
