"""The best validation of an experiment, as one of its trials knows it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from detcore.database import Database
    from detcore.types import TrialInfo

__all__ = ["BestValidation"]


class BestValidation:
    """The best value of the searcher's metric over all trials.

    This trial's own values are kept here as they are reported, because the database gets them a
    moment later; and those that a killed run of it reported beyond the step that this run started
    from are left out, so that a resumed run decides as an uninterrupted one would.
    """

    def __init__(self, info: TrialInfo, database: Database) -> None:
        searcher: Any = info.config.get("searcher") or {}
        self._metric: str | None = searcher.get("metric")
        self._smaller = bool(searcher.get("smaller_is_better", True))
        self._info = info
        self._database = database
        self._own: float | None = None
        self._is_loaded = False

    def add(self, metrics: Mapping[str, float]) -> None:
        """Note a validation of this trial."""
        if self._metric is not None:
            self._own = self._better(self._own, metrics.get(self._metric))

    def value(self) -> float | None:
        """Return the best value, or None where there is none."""
        metric = self._metric
        if metric is None:
            return None
        if not self._is_loaded:
            self._is_loaded = True
            for row in self._database.metrics(self._info.trial_id, "validation"):
                if row.run_id < self._info.run_id and (
                    row.steps_completed <= self._info.steps_completed
                ):
                    self.add(row.metrics)
        best = self._own
        for trial in self._database.list_trials(self._info.experiment_id):
            if trial.id == self._info.trial_id:
                continue
            record = self._database.trial_best_validation(
                trial.id, metric, smaller_is_better=self._smaller
            )
            if record is not None:
                best = self._better(best, record.metrics[metric])
        return best

    def _better(self, first: float | None, second: float | None) -> float | None:
        if second is None or math.isnan(second):
            return first
        if first is None:
            return second
        return min(first, second) if self._smaller else max(first, second)
