"""The best validation of an experiment, as one of its trials knows it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from detcore.database import WorkerRecords
    from detcore.types import TrialInfo

__all__ = ["BestValidation"]


class BestValidation:
    """The best value of the searcher's metric over all trials.

    This trial's own values are kept here as they are reported, because the records get them a
    moment later; and those that a killed run of it reported beyond the step that this run started
    from are left out (`TrialInfo.best_validation`), so that a resumed run decides as an
    uninterrupted one would.
    """

    def __init__(self, info: TrialInfo, records: WorkerRecords) -> None:
        searcher: Any = info.config.get("searcher") or {}
        self._metric: str | None = searcher.get("metric")
        self._smaller = bool(searcher.get("smaller_is_better", True))
        self._trial_id = info.trial_id
        self._records = records
        self._own: float | None = info.best_validation

    def add(self, metrics: Mapping[str, float]) -> None:
        """Note a validation of this trial."""
        if self._metric is not None:
            self._own = self._better(self._own, metrics.get(self._metric))

    def value(self) -> float | None:
        """Return the best value, or None where there is none."""
        if self._metric is None:
            return None
        others = self._records.best_of_other_trials(
            self._trial_id, self._metric, smaller_is_better=self._smaller
        )
        return self._better(self._own, others)

    def _better(self, first: float | None, second: float | None) -> float | None:
        if second is None or math.isnan(second):
            return first
        if first is None:
            return second
        return min(first, second) if self._smaller else max(first, second)
