"""What lists show of each trial, for all trials of an experiment at once."""

from __future__ import annotations

import dataclasses
from typing import Any

from sqlalchemy import func, select

from detcore.database._queries import Queries, require
from detcore.database._ranking import is_last_report
from detcore.database._records import MetricRecord, metric_of
from detcore.database._schema import (
    checkpoints,
    experiments,
    metrics,
    runs,
    trials,
    validation_values,
)

__all__ = ["SummaryQueries", "TrialSummary"]

_AT_ONCE = 500


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TrialSummary:
    """What a list shows of a trial.

    Attributes:
        num_runs: How often it was started.
        steps_completed: The most steps that any report had; 0 without reports.
        best: Its best validation, or None; see `Database.trial_best_validation`.
        latest_checkpoint: UUID of its COMPLETED checkpoint with the most steps, or None.
    """

    num_runs: int
    steps_completed: int
    best: MetricRecord | None
    latest_checkpoint: str | None


class SummaryQueries(Queries):
    """Sum up trials."""

    def summarize_trials(
        self, experiment_id: int, *, metric: str | None, smaller_is_better: bool = True
    ) -> dict[int, TrialSummary]:
        """Return a summary of each trial of an experiment, by id.

        Args:
            experiment_id: Which experiment.
            metric: The validation metric that makes a validation the best; None = no best.
            smaller_is_better: Whether a smaller value is better.

        Raises:
            NotFoundError: If there is no such experiment.
        """
        query = select(
            trials.c.id,
            _num_runs().label("num_runs"),
            _steps("training").label("trained"),
            _steps("validation").label("validated"),
            _latest().label("latest"),
            *([] if metric is None else [_best(metric, smaller_is_better).label("best")]),
        ).where(trials.c.experiment_id == experiment_id)
        with self._read() as connection:
            rows = connection.execute(query.order_by(trials.c.id)).fetchall()
            if not rows:
                require(connection, experiments, "experiment", experiment_id)
            best: dict[int, MetricRecord] = {}
            wanted = [row.best for row in rows if metric is not None and row.best is not None]
            for start in range(0, len(wanted), _AT_ONCE):
                some = wanted[start : start + _AT_ONCE]
                found = connection.execute(select(metrics).where(metrics.c.id.in_(some)))
                best |= {row.trial_id: metric_of(row) for row in found}
        return {
            row.id: TrialSummary(
                num_runs=row.num_runs,
                steps_completed=max(row.trained or 0, row.validated or 0),
                best=best.get(row.id),
                latest_checkpoint=row.latest,
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


def _latest() -> Any:
    return (
        select(checkpoints.c.uuid)
        .where(checkpoints.c.trial_id == trials.c.id, checkpoints.c.state == "COMPLETED")
        .order_by(
            checkpoints.c.steps_completed.desc(),
            checkpoints.c.committed_at.desc(),
            checkpoints.c.uuid,
        )
        .limit(1)
        .scalar_subquery()
    )


def _best(metric: str, smaller_is_better: bool) -> Any:
    value = validation_values.c.value
    return (
        select(metrics.c.id)
        .join(validation_values, validation_values.c.metric_id == metrics.c.id)
        .where(
            validation_values.c.trial_id == trials.c.id,
            validation_values.c.name == metric,
            is_last_report(),
        )
        .order_by(
            value.asc() if smaller_is_better else value.desc(),
            metrics.c.steps_completed,
            metrics.c.id,
        )
        .limit(1)
        .correlate(trials)
        .scalar_subquery()
    )
