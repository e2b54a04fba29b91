"""What follows from the end of a trial's workers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from detcore.errors import in_one_line
from detcore.runner._starting import nothing_left
from detcore.search import Exited, ExitReason
from detcore.types import TrialState

if TYPE_CHECKING:
    from detcore.runner._restarts import Restarts
    from detcore.runner._running import RunningTrial
    from detcore.runner._search_log import SearchLog
    from detcore.runner._standing import Standing
    from detcore.runner._starting import TrialStarter
    from detcore.runner._stops import Stops

__all__ = ["Endings"]


class _Apply(Protocol):
    def __call__(self, event: Exited, /, *, error: str | None = None) -> None: ...


class Endings:
    """Decides for each trial whose workers ended whether it is done, waits, or starts again.

    Args:
        starter: Knows the trials' checkpoints.
        log: The search.
        standing: How the trials stand.
        stops: Whether the run is to end.
        restarts: When those that crashed start again.
        apply: Tells the search what happened.
    """

    def __init__(
        self,
        starter: TrialStarter,
        log: SearchLog,
        standing: Standing,
        stops: Stops,
        restarts: Restarts,
        apply: _Apply,
    ) -> None:
        self._starter = starter
        self._database = starter.database
        self._log = log
        self._standing = standing
        self._stops = stops
        self._restarts = restarts
        self._apply = apply

    def ended(self, trial: RunningTrial) -> None:
        """Take note of a trial's end; its workers are closed, its log is still open."""
        standing, index = self._standing, trial.index
        planned = self._log.search.trials[index]
        if index in standing.again and (trial.ended_well or trial.was_interrupted):
            standing.again.remove(index)
        if planned.is_closed and (trial.ended_well or trial.was_interrupted):
            standing.record(index, TrialState.COMPLETED)
        elif trial.was_told_end and (trial.ended_well or not planned.is_closed):
            if not trial.ended_well and not trial.was_interrupted:
                told = f"trial {trial.info.trial_id}: {trial.error}"
                trial.output.say(in_one_line(told, "Its result counts"))
            standing.record(index, self._stops.stopped_state)
        elif index in self._stops.unwanted:
            self.drop(index)
        elif trial.ended_well:
            self._apply(Exited(index, ExitReason.STOPPED))
            standing.record(index, TrialState.COMPLETED)
        elif trial.was_interrupted:
            standing.left_alone.add(index)
            standing.record(index, self._stops.stopped_state)
        elif trial.is_invalid_hp:
            self._fail(trial, ExitReason.INVALID_HP)
        elif trial.damaged is not None:
            self._go_back(trial, *trial.damaged)
        else:
            self._crashed(trial)

    def drop(self, index: int) -> None:
        """End a trial for good that does not run; one that is over stays as it is."""
        if index in self._standing.again:
            self._standing.again.remove(index)
        elif self._log.search.trials[index].is_closed:
            return
        else:
            self._apply(Exited(index, ExitReason.STOPPED))
        self._standing.record(index, TrialState.CANCELED)

    def _crashed(self, trial: RunningTrial) -> None:
        """Start a trial again that failed, if that may help."""
        standing, index, trial_id = self._standing, trial.index, trial.info.trial_id
        if self._stops.is_stopping:
            standing.left_alone.add(index)
            standing.record(index, TrialState.ERROR, error=trial.error)
            standing.errors[index] = trial.error
            return
        record = self._database.get_trial(trial_id)
        latest = self._database.latest_checkpoint(trial_id)
        made_progress = latest is not None and latest.steps_completed > trial.info.steps_completed
        is_repeated = self._restarts.is_repeated(index, trial.fault, made_progress=made_progress)
        if trial.cannot_heal or is_repeated or record.num_restarts >= self._restarts.most:
            if is_repeated:
                why = "it failed twice in the same way, with no new checkpoint in between"
            elif trial.cannot_heal and trial.has_begun:
                why = "it would end in the same way each time"
            elif trial.cannot_heal:
                why = "it failed before its first batch, and would fail there each time"
            else:
                why = None
            if why and self._restarts.most:
                trial.output.say(f"trial {trial_id} is not started again: {why}")
            self._fail(trial, ExitReason.ERRORED)
            return
        if self._log.search.trials[index].is_closed and index not in standing.again:
            standing.again.append(index)
        count = self._database.count_restart(trial_id)
        pause_s = self._restarts.crashed(index, made_progress=made_progress)
        standing.record(index, TrialState.PAUSED, error=trial.error)
        when = f" in {pause_s:.0f} s" if pause_s else ""
        if latest is not None:
            origin = "from its latest checkpoint"
        elif trial.info.source_checkpoint is not None:
            origin = f"from checkpoint {trial.info.source_checkpoint}, as at first"
        else:
            origin = "from the beginning: it has no checkpoint"
        trial.output.say(
            in_one_line(
                f"trial {trial_id} failed: {trial.error}",
                f"It starts again{when} {origin} (restart {count} of {self._restarts.most})",
            )
        )

    def _go_back(self, trial: RunningTrial, uuid: str, error: str) -> None:
        """Go on from the checkpoint before one that cannot be restored."""
        trial_id = trial.info.trial_id
        other = self._starter.give_up_checkpoint(trial_id, uuid)
        if other is None:
            self._fail(trial, ExitReason.ERRORED, error=nothing_left(error, trial_id, uuid))
            return
        self._standing.record(trial.index, self._stops.stopped_state)
        trial.output.say(
            in_one_line(
                error.splitlines()[0],
                f"Going on from the one before: {other.uuid}, {other.steps_completed} batches",
            )
        )

    def _fail(self, trial: RunningTrial, reason: ExitReason, *, error: str | None = None) -> None:
        """A trial failed for good."""
        standing, index = self._standing, trial.index
        error = error or trial.error
        standing.errors[index] = error
        recorded = f"InvalidHP: {error}" if reason is ExitReason.INVALID_HP else error
        if index in standing.again:
            standing.again.remove(index)
        event = Exited(index, reason)
        if self._log.search.trials[index].is_closed:
            pass  # it failed after its last report, which counts
        elif self._log.would_end_in_failure(event):
            # With nothing to show for, the search can be gone on with: that trial once more.
            standing.left_alone.add(index)
        else:
            self._apply(event, error=recorded)
            trial.output.say(f"trial {trial.info.trial_id} failed: {error}")
        standing.record(index, TrialState.ERROR, error=recorded)
