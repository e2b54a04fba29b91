"""The values that lists show for each trial, for all trials of an experiment at once."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from sqlalchemy import func, select

from detcore._records import MetricRecord, read_rows
from detcore.database._checkpoints import select_latest
from detcore.database._metrics import select_best
from detcore.database._queries import Queries, among, require
from detcore.database._schema import (
    checkpoints,
    experiments,
    metrics,
    runs,
    trials,
    validation_values,
)

__all__ = ["SummaryQueries", "TrialSummary"]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TrialSummary:
    """The values that a list shows for a trial.

    Attributes:
        num_runs: How often it was started.
        steps_completed: The most steps that any report had; 0 without reports.
        best: Its best validation, or None; see `Database.trial_best_validation`.
        latest_checkpoint: UUID of its COMPLETED checkpoint with the most steps, or None.
        steps_saved: Steps of that checkpoint; 0 without one.
    """

    num_runs: int
    steps_completed: int
    best: MetricRecord | None
    latest_checkpoint: str | None
    steps_saved: int


class SummaryQueries(Queries):
    """Sum up trials."""

    def summarize_trials(
        self,
        experiment_id: int,
        *,
        metric: str | None,
        smaller_is_better: bool = True,
        trial_ids: Sequence[int] | None = None,
    ) -> dict[int, TrialSummary]:
        """Return a summary of each trial of an experiment, by id.

        Args:
            experiment_id: Which experiment.
            metric: The validation metric that makes a validation the best; None = no best.
            smaller_is_better: Whether a smaller value is better.
            trial_ids: Only these trials; None = all.

        Raises:
            NotFoundError: If there is no such experiment.
        """
        query = select(
            trials.c.id,
            _num_runs().label("num_runs"),
            _steps("training").label("trained"),
            _steps("validation").label("validated"),
            _latest(checkpoints.c.uuid).label("latest"),
            _latest(checkpoints.c.steps_completed).label("saved"),
            *([] if metric is None else [_best(metric, smaller_is_better).label("best")]),
        ).where(trials.c.experiment_id == experiment_id)
        with self._read() as connection:
            rows = [
                row
                for condition in among(trials.c.id, trial_ids)
                for row in connection.execute(query.where(condition).order_by(trials.c.id))
            ]
            if not rows:
                require(connection, experiments, experiment_id)
            best: dict[int, MetricRecord] = {}
            wanted = [row.best for row in rows if metric is not None and row.best is not None]
            for condition in among(metrics.c.id, wanted):
                found = connection.execute(select(metrics).where(condition))
                best |= {each.trial_id: each for each in read_rows(MetricRecord, found)}
        return {
            row.id: TrialSummary(
                num_runs=row.num_runs,
                steps_completed=max(row.trained or 0, row.validated or 0),
                best=best.get(row.id),
                latest_checkpoint=row.latest,
                steps_saved=row.saved or 0,
            )
            for row in rows
        }


# Subqueries of one trial, each a look-up in an index.


def _num_runs() -> Any:
    return select(func.count()).where(runs.c.trial_id == trials.c.id).scalar_subquery()


def _steps(kind: str) -> Any:
    return (
        select(func.max(metrics.c.steps_completed))
        .where(metrics.c.trial_id == trials.c.id, metrics.c.kind == kind)
        .scalar_subquery()
    )


def _latest(what: Any) -> Any:
    owner = checkpoints.c.trial_id == trials.c.id
    return select_latest(select(what), owner).scalar_subquery()


def _best(metric: str, smaller_is_better: bool) -> Any:
    owner = validation_values.c.trial_id == trials.c.id
    query = select_best(select(metrics.c.id), owner, metric, smaller_is_better)
    return query.correlate(trials).scalar_subquery()
