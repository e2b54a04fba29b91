"""How the trials of a running search stand, in the records and for who watches."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from detcore.database import DatabaseAway, Patience, ingest_spools
from detcore.runner._listener import TrialStatus
from detcore.search import ExitReason
from detcore.types import TrialState

if TYPE_CHECKING:
    from detcore.database import TrialRecord
    from detcore.runner._running import RunningTrial
    from detcore.runner._search_log import SearchLog
    from detcore.runner._starting import TrialStarter

__all__ = ["Standing"]

# So much of the search makes a difference for displays.
_LEAST_PROGRESS = 0.001


class Standing:
    """Keeps the records of trials, and what this run knows of them beside the search's log.

    Args:
        starter: Knows the records and who watches.
        log: The search.

    Attributes:
        left_alone: Trials not started again in this run: they made way by themselves, or failed
            for good.
        again: Trials closed by the search whose code failed afterwards: that is done once more.
        errors: What trials failed with in this run, in the order in which they did.
    """

    def __init__(self, starter: TrialStarter, log: SearchLog) -> None:
        self._starter = starter
        self._database = starter.database
        self._listener = starter.listener
        # Progress is only displayed: waiting for the records would hold up signals to the trials.
        self._once = starter.database.patient(Patience(starter.listener.notice, longest_s=0))
        self._log = log
        self.left_alone: set[int] = set()
        self.again: list[int] = []
        self.errors: dict[int, str] = {}
        self._percent = 0
        self._told_progress = -1.0
        self._is_metric_checked = False

    def settle(self) -> None:
        """Bring the records to where the log is: a runner may have died in between."""
        recorded = {trial.id: trial for trial in self._database.list_trials(self._experiment_id)}
        for index, trial_id in sorted(self._log.trial_ids.items()):
            trial = recorded[trial_id]
            planned = self._log.search.trials[index]
            if not planned.is_closed:
                self._record(index, trial, TrialState.PAUSED)
            elif index in self._log.exits:
                reason, error = self._log.exits[index]
                if reason is ExitReason.STOPPED:
                    ended = TrialState.COMPLETED if trial.control is None else TrialState.CANCELED
                    self._record(index, trial, ended)
                else:
                    self._record(index, trial, TrialState.ERROR, error)
            elif trial.state is TrialState.ERROR:
                # Its code failed after its last report: that part of it is done again.
                self.again.append(index)
                self._record(index, trial, TrialState.PAUSED)
            else:
                self._record(index, trial, TrialState.COMPLETED)
        self.tell_progress()

    def progressed(self, index: int, part: float) -> None:
        """Take note of how much of its length a trial has trained, 0 to 1.

        It is recorded at most once for each percent of the search, and not while the database is
        away.
        """
        search = self._log.search
        if not search.trials[index].is_closed:
            search.trained[index] = part
        progress = search.progress
        if int(progress * 100) != self._percent:
            self._percent = int(progress * 100)
            with contextlib.suppress(DatabaseAway):
                self._once.set_search_progress(self._experiment_id, progress)
        if abs(progress - self._told_progress) >= _LEAST_PROGRESS:
            self.tell_progress()

    def tell_progress(self) -> None:
        """Tell who watches how much of the search is done."""
        search = self._log.search
        self._told_progress = search.progress
        self._listener.search_progress(search.progress, search.planned_length)

    def check_metric(self, trial: RunningTrial) -> None:
        """Say once that a script reports no metric of the name that the searcher has.

        The search goes by the number that it gives to ``report_completed``, but lists, the best
        checkpoint, and which ones are kept go by the name.
        """
        metric = self._starter.plain["searcher"]["metric"]
        if self._is_metric_checked or not trial.validated:
            return
        self._is_metric_checked = True
        if metric not in trial.validated:
            names = ", ".join(sorted(trial.validated))
            self._listener.notice(
                f"searcher.metric is {metric!r}, but the validations of trial "
                f"{trial.info.trial_id} report: {names}. So no best trial or checkpoint is known. "
                "Correct the name in the file, or report a metric of that name."
            )

    def states(self) -> list[TrialState]:
        """Return the recorded states of all trials."""
        return [trial.state for trial in self._database.list_trials(self._experiment_id)]

    def record(self, index: int, state: TrialState, *, error: str | None = None) -> None:
        """Record the state of a trial, where it is another one, and tell it."""
        trial_id = self._log.trial_ids[index]
        self._record(index, self._database.get_trial(trial_id), state, error)

    def _record(
        self, index: int, known: TrialRecord, state: TrialState, error: str | None = None
    ) -> None:
        if (known.state, known.error) != (state, error):
            self._database.set_trial_state(known.id, state, error=error)
        self.tell(index, state, error=error)

    def tell(self, index: int, state: TrialState, *, error: str | None = None) -> None:
        """Tell who watches how a trial stands."""
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

    def take_in(self, trial_id: int) -> None:
        """Take in what workers reported and did not move into the database themselves."""
        ingest_spools(
            self._database,
            self._starter.environment.home,
            experiment_id=self._experiment_id,
            trial_id=trial_id,
        )

    @property
    def _experiment_id(self) -> int:
        return self._starter.experiment_id
