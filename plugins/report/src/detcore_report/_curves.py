"""Read the curves of a page: from all reports, or downsampled to the chart's resolution."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from detcore.database import MetricCurve

if TYPE_CHECKING:
    from detcore.database import Database, MetricRecord, TrialRecord


class AllReports:
    """Every report, for files that are kept."""

    def __init__(
        self,
        database: Database,
        trials: Sequence[TrialRecord],
        *,
        asked: str | None,
        everything: bool,
    ) -> None:
        self._database = database
        self._trials = trials
        self._reports = self._read("validation")
        self.names = self._list_names()
        # Training reports are numerous: they are read only if needed.
        if everything or not any(name == asked for _, name in self.names):
            self._reports |= self._read("training")
            self.names = self._list_names()

    def _read(self, kind: str) -> dict[tuple[int, str], Sequence[MetricRecord]]:
        return {
            (trial.id, kind): self._database.metrics(trial.id, kind, with_batches=False)
            for trial in self._trials
        }

    def _list_names(self) -> Sequence[tuple[str, str]]:
        names = {
            (kind, name)
            for (_, kind), rows in self._reports.items()
            for row in rows
            for name, value in row.metrics.items()
            if isinstance(value, (int, float)) and not isinstance(value, bool)
        }
        return sorted(names, key=lambda name: (name[0] != "validation", name[1]))

    def curves(
        self, kind: str, metric: str, only: tuple[int, ...] | None = None
    ) -> Mapping[int, MetricCurve]:
        """Return a metric by trial, of some trials or all."""
        return {
            trial_id: MetricCurve(
                [
                    (row.steps_completed, row.metrics[metric])
                    for row in rows
                    if metric in row.metrics
                ]
            )
            for (trial_id, own_kind), rows in self._reports.items()
            if own_kind == kind and (only is None or trial_id in only)
        }


class DrawnReports:
    """Downsampled curves, for pages that are read repeatedly."""

    def __init__(self, database: Database, experiment_id: int, *, parts: int) -> None:
        self._read = functools.cache(
            functools.partial(database.metric_curves, experiment_id, parts=parts)
        )
        self.names: Sequence[tuple[str, str]] = database.metric_names(experiment_id)

    def curves(
        self, kind: str, metric: str, only: tuple[int, ...] | None = None
    ) -> Mapping[int, MetricCurve]:
        """Return a metric by trial, of some trials or all."""
        return self._read(kind, metric, trial_ids=only)
