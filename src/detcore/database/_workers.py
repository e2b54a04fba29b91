"""Queries for the workers of a trial, except those about checkpoints."""

from __future__ import annotations

from collections.abc import Mapping

from sqlalchemy import and_, func, select

from detcore.database._metrics import select_best
from detcore.database._queries import Queries
from detcore.database._schema import metrics, trials, validation_values
from detcore.types import searcher_metric

__all__ = ["WorkerQueries"]


class WorkerQueries(Queries):
    """Best metrics of a trial, and of the other trials of its experiment."""

    def best_of_other_trials(
        self, trial_id: int, metric: str, *, smaller_is_better: bool
    ) -> float | None:
        """Return the best value of a validation metric over the other trials of an experiment.

        Args:
            trial_id: The trial that is left out.
            metric: Name of the metric.
            smaller_is_better: Whether a smaller value is better.

        Returns:
            The value; None if no other trial has reported one.
        """
        values = validation_values.c
        mine = select(trials.c.experiment_id).where(trials.c.id == trial_id).scalar_subquery()
        others = and_(values.experiment_id == mine, values.trial_id != trial_id)
        query = select_best(
            select(values.value).select_from(metrics), others, metric, smaller_is_better
        )
        with self._read() as connection:
            found = connection.execute(query).fetchone()
        return None if found is None else float(found.value)

    def best_until(
        self, trial_id: int, config: Mapping[str, object], steps_completed: int
    ) -> float | None:
        """Return the best value of the searcher's metric that a trial reported until a step.

        Of steps that several runs reported, all count: each was the truth when it was acted on.

        Args:
            trial_id: The trial.
            config: The configuration of its experiment.
            steps_completed: The last step that counts.
        """
        metric, smaller_is_better = searcher_metric(config)
        if metric is None:
            return None
        values = validation_values.c
        best = func.min(values.value) if smaller_is_better else func.max(values.value)
        query = (
            select(best)
            .select_from(validation_values)
            .join(metrics, metrics.c.id == values.metric_id)
            .where(
                values.trial_id == trial_id,
                values.name == metric,
                metrics.c.steps_completed <= steps_completed,
            )
        )
        with self._read() as connection:
            found = connection.execute(query).scalar()
        return None if found is None else float(found)
