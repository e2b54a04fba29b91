"""Several trials at once, until their search wants no more, or somebody ends them."""

from __future__ import annotations

import dataclasses
import select
import signal
import time
from typing import TYPE_CHECKING

from detcore.database import ingest_spools
from detcore.errors import DetcoreError
from detcore.runner._listener import TrialStatus
from detcore.runner._starting import nothing_left
from detcore.search import Close, Create, Exited, ExitReason, Train, Validated
from detcore.types import Control, TrialState

if TYPE_CHECKING:
    from detcore.launch import WorkerEvent
    from detcore.runner._interrupts import Interrupts, Requests
    from detcore.runner._running import RunningTrial
    from detcore.runner._search_log import SearchLog
    from detcore.runner._slots import Slots
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
    """

    state: TrialState
    error: str | None = None
    was_cut_short: bool = False


class SearchLoop:
    """Trains the trials of a search, as many at once as there are slots.

    What happens to a trial is applied to the search and logged before anything follows from it.

    Args:
        starter: Starts the trials.
        log: The search.
        slots: The places for trials.
        interrupts: Signals of this process.
        requests: What other processes ask for.
        max_restarts: How often a trial that fails is started again.
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
        self._max_restarts = max_restarts
        self._running: list[RunningTrial] = []
        # Not started again in this run: they made way by themselves, or failed for good.
        self._left_alone: set[int] = set()
        # Closed by the search, but their code failed afterwards.
        self._again: list[int] = []
        self._errors: dict[int, str] = {}
        self._num_passed_on = 0
        self._control: Control | None = None
        self._failure: DetcoreError | None = None
        self._was_cut_short = False
        self._tick_at = 0.0

    def run(self) -> Conclusion:
        """Train until there is nothing left to do, or the run is to end.

        Raises:
            DetcoreError: If the search fails, or the records; all workers have ended then.
        """
        try:
            self._settle()
            while True:
                self._start_trials()
                if not self._running:
                    break
                self._wait()
                for trial in list(self._running):
                    for event in trial.workers.poll():
                        self._told(trial, event)
                    if not trial.workers.is_alive:
                        self._running.remove(trial)
                        self._ended(trial)
                self._look_for_ends()
                self._tick()
        except BaseException:
            self._abandon()
            raise
        if self._failure is not None:
            raise self._failure
        return self._conclude()

    # -- beginning --------------------------------------------------------------------------------

    def _settle(self) -> None:
        """Bring the records of trials to where the log is: a runner may have died in between."""
        recorded = {trial.id: trial for trial in self._database.list_trials(self._experiment_id)}
        for index, trial_id in sorted(self._log.trial_ids.items()):
            trial = recorded[trial_id]
            planned = self._log.search.trials[index]
            if not planned.is_closed:
                self._record(index, TrialState.PAUSED)
            elif index in self._log.exits:
                reason, error = self._log.exits[index]
                is_failure = reason is not ExitReason.STOPPED
                self._record(
                    index,
                    TrialState.ERROR if is_failure else TrialState.COMPLETED,
                    error=error if is_failure else None,
                )
            elif trial.state is TrialState.ERROR:
                # Its code failed after its last report: that part of it is done again.
                self._again.append(index)
                self._record(index, TrialState.PAUSED)
            else:
                self._record(index, TrialState.COMPLETED)
        self._listener.search_progress(self._log.search.progress)

    def _start_trials(self) -> None:
        if self._is_stopping:
            return
        busy = {trial.index for trial in self._running}
        for index in [*self._again, *self._log.order]:
            if index in busy or index in self._left_alone:
                continue
            place = self._slots.take()
            if place is None:
                return
            try:
                trial = self._starter.start(
                    index,
                    self._log.trial_ids[index],
                    length=self._log.search.trials[index].length,
                    place=place,
                )
            except BaseException:
                self._slots.give_back(place)
                self._record(index, TrialState.PAUSED)
                raise
            self._running.append(trial)
            self._tell_status(index, TrialState.RUNNING)

    # -- while trials run -------------------------------------------------------------------------

    def _wait(self) -> None:
        poll = select.poll()
        for trial in self._running:
            poll.register(trial.workers.fileno(), select.POLLIN)
        poll.poll(_WAIT_MS)

    def _tick(self) -> None:
        now = time.monotonic()
        if now >= self._tick_at:
            self._tick_at = now + _TICK_EVERY_S
            self._listener.tick()

    def _told(self, trial: RunningTrial, event: WorkerEvent) -> None:
        if event.type == "searcher_completed":
            self._completed(trial, int(event.fields["length"]), float(event.fields["metric"]))
            return
        trial.note(event)
        self._listener.event(trial.info, event)

    def _completed(self, trial: RunningTrial, length: int, metric: float) -> None:
        """A trial trained as far as it was told to; decide how it goes on."""
        planned = self._log.search.trials[trial.index]
        # A trial that does its ending once more reports what is known.
        is_news = not planned.is_closed and not planned.is_waiting and planned.length == length
        if is_news:
            self._apply(Validated(trial.index, length, metric))
        goes_on = not planned.is_closed and not planned.is_waiting and planned.length > length
        if goes_on and not self._is_stopping:
            trial.workers.reply(type="train", length=planned.length)
            self._tell_status(trial.index, TrialState.RUNNING)
        else:
            trial.was_told_end = True
            trial.workers.reply(type="end")

    def _apply(self, event: Validated | Exited, *, error: str | None = None) -> None:
        """Tell the search, and do what follows at once; what is to be trained waits its turn."""
        if self._failure is not None:
            return
        try:
            operations = self._log.record(event, error=error)
        except DetcoreError as failure:
            self._failure = failure
            self._signal_all(signal.SIGINT)
            return
        self._listener.search_progress(self._log.search.progress)
        running = {trial.index: trial for trial in self._running}
        for operation in operations:
            if isinstance(operation, Create):
                self._tell_status(operation.trial, TrialState.PAUSED)
            elif isinstance(operation, Close) and operation.trial != event.trial:
                if operation.trial in running:
                    if not running[operation.trial].was_told_end:
                        running[operation.trial].signal(signal.SIGINT)
                else:
                    self._record(operation.trial, TrialState.COMPLETED)
            elif isinstance(operation, Train) and operation.trial not in running:
                self._tell_status(operation.trial, TrialState.PAUSED)

    def _look_for_ends(self) -> None:
        """See whether this process, or another one, wants the trials to end."""
        if self._interrupts.is_urgent:
            self._was_cut_short = True
            for trial in self._running:
                trial.kill()
        for number in self._interrupts.received[self._num_passed_on :]:
            self._num_passed_on += 1
            # As it is: what ends the machine gives less time than a person does.
            self._signal_all(number)
            what = "the trial checkpoints" if len(self._running) < 2 else "all trials checkpoint"
            ends = "ends" if len(self._running) < 2 else "end"
            self._listener.notice(
                f"{signal.Signals(number).name}: {what} at the next batch boundary and {ends} "
                "(Ctrl-C again: end now, without a checkpoint)"
            )
        asked = self._requests.look()
        if asked is None or asked is self._control:
            return
        self._control = asked
        if asked is Control.KILL:
            self._listener.notice("kill: all trials end now, without a checkpoint")
            for trial in self._running:
                trial.kill()
        else:
            self._listener.notice(
                f"{asked.value}: all trials checkpoint at the next batch boundary and end"
            )
            self._signal_all(signal.SIGINT)

    def _signal_all(self, number: int) -> None:
        for trial in self._running:
            trial.signal(number)

    @property
    def _is_stopping(self) -> bool:
        return bool(
            self._control is not None or self._failure is not None or self._interrupts.received
        )

    # -- ends of trials ---------------------------------------------------------------------------

    def _ended(self, trial: RunningTrial) -> None:
        trial.close()
        self._slots.give_back(trial.place)
        self._take_in(trial)
        index = trial.index
        planned = self._log.search.trials[index]
        if index in self._again and (trial.ended_well or trial.was_interrupted):
            self._again.remove(index)
        if planned.is_closed and (trial.ended_well or trial.was_interrupted):
            self._record(index, TrialState.COMPLETED)
        elif trial.was_told_end and (trial.ended_well or not planned.is_closed):
            if not trial.ended_well and not trial.was_interrupted:
                trial.output.say(f"trial {trial.info.trial_id}: {trial.error}; its result counts")
            self._record(index, self._stopped_state)
        elif trial.ended_well:
            self._apply(Exited(index, ExitReason.STOPPED))
            self._record(index, TrialState.COMPLETED)
        elif trial.was_interrupted:
            self._left_alone.add(index)
            self._record(index, self._stopped_state)
        elif trial.is_invalid_hp:
            self._fail(trial, ExitReason.INVALID_HP)
        elif trial.damaged is not None:
            self._go_back(trial, *trial.damaged)
        else:
            self._crashed(trial)
        trial.output.close()

    def _crashed(self, trial: RunningTrial) -> None:
        """Start a trial again that failed, if that may help."""
        index, trial_id = trial.index, trial.info.trial_id
        if self._is_stopping:
            self._left_alone.add(index)
            self._record(index, TrialState.ERROR, error=trial.error)
            self._errors[index] = trial.error
            return
        record = self._database.get_trial(trial_id)
        if record.num_restarts >= self._max_restarts:
            self._fail(trial, ExitReason.ERRORED)
            return
        if self._log.search.trials[index].is_closed and index not in self._again:
            self._again.append(index)
        count = self._database.count_restart(trial_id)
        self._record(index, TrialState.PAUSED, error=trial.error)
        trial.output.say(
            f"trial {trial_id} failed: {trial.error}; it starts again from its latest checkpoint "
            f"(restart {count} of {self._max_restarts})"
        )

    def _go_back(self, trial: RunningTrial, uuid: str, error: str) -> None:
        """Go on from the checkpoint before one that cannot be restored."""
        trial_id = trial.info.trial_id
        other = self._starter.give_up_checkpoint(trial_id, uuid)
        if other is None:
            self._fail(trial, ExitReason.ERRORED, error=nothing_left(error, trial_id, uuid))
            return
        self._record(trial.index, self._stopped_state)
        trial.output.say(
            f"{error.splitlines()[0]} Going on from the one before: {other.uuid}, "
            f"{other.steps_completed} batches"
        )

    def _fail(self, trial: RunningTrial, reason: ExitReason, *, error: str | None = None) -> None:
        """A trial failed for good."""
        index = trial.index
        error = error or trial.error
        self._errors[index] = error
        recorded = f"InvalidHP: {error}" if reason is ExitReason.INVALID_HP else error
        if index in self._again:
            self._again.remove(index)
        event = Exited(index, reason)
        if self._log.search.trials[index].is_closed:
            pass  # it failed after its last report, which counts
        elif self._log.would_end_in_failure(event):
            # With nothing to show for, the search can be gone on with: that trial once more.
            self._left_alone.add(index)
        else:
            self._apply(event, error=recorded)
            trial.output.say(f"trial {trial.info.trial_id} failed: {error}")
        self._record(index, TrialState.ERROR, error=recorded)

    # -- the end ----------------------------------------------------------------------------------

    def _conclude(self) -> Conclusion:
        states = [t.state for t in self._database.list_trials(self._experiment_id)]
        search = self._log.search
        failed = next(iter(reversed(self._errors.values())), None)
        if search.is_finished and not self._again:
            if TrialState.COMPLETED in states:
                return Conclusion(state=TrialState.COMPLETED)
            return Conclusion(state=TrialState.ERROR, error=self._summary(failed))
        if self._control in (Control.CANCEL, Control.KILL):
            for index, planned in enumerate(search.trials):
                if not planned.is_closed:
                    self._record(index, TrialState.CANCELED)
            return Conclusion(state=TrialState.CANCELED)
        if self._errors and TrialState.PAUSED not in states:
            return Conclusion(state=TrialState.ERROR, error=self._summary(failed))
        return Conclusion(state=TrialState.PAUSED, was_cut_short=self._was_cut_short)

    def _summary(self, error: str | None) -> str | None:
        if len(self._log.search.trials) == 1 or error is None:
            return error
        return f"no trial completed; the last one that failed: {error}"

    def _abandon(self) -> None:
        """End all workers at once; the run fails."""
        for trial in self._running:
            trial.kill()
        for trial in self._running:
            trial.close()
            trial.output.close()
            self._take_in(trial)
            self._database.set_trial_state(trial.info.trial_id, TrialState.PAUSED)

    def _take_in(self, trial: RunningTrial) -> None:
        """Take in what the workers reported and did not move into the database themselves."""
        ingest_spools(
            self._database,
            self._starter.environment.home,
            experiment_id=self._experiment_id,
            trial_id=trial.info.trial_id,
        )

    # -- records ----------------------------------------------------------------------------------

    @property
    def _experiment_id(self) -> int:
        return self._starter.experiment_id

    @property
    def _stopped_state(self) -> TrialState:
        is_canceled = self._control in (Control.CANCEL, Control.KILL)
        return TrialState.CANCELED if is_canceled else TrialState.PAUSED

    def _record(self, index: int, state: TrialState, *, error: str | None = None) -> None:
        trial_id = self._log.trial_ids[index]
        known = self._database.get_trial(trial_id)
        if (known.state, known.error) != (state, error):
            self._database.set_trial_state(trial_id, state, error=error)
        self._tell_status(index, state, error=error)

    def _tell_status(self, index: int, state: TrialState, *, error: str | None = None) -> None:
        planned = self._log.search.trials[index]
        self._listener.trial_changed(
            TrialStatus(
                trial_id=self._log.trial_ids[index],
                index=index,
                state=state,
                hparams=planned.hparams,
                length=planned.length,
                rung=self._log.rungs.get(index, 0),
                metric=self._log.best.get(index),
                is_waiting=planned.is_waiting and not planned.is_closed,
                error=error,
            )
        )
