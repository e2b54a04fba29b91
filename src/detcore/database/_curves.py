"""Metrics over steps as they are drawn: of long curves what can be seen, for all trials at once."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

from sqlalchemy import ColumnElement, Integer, Subquery, cast, func, or_, select
from sqlalchemy.engine import Connection

from detcore._log import decode_metrics
from detcore.database._metrics import is_current
from detcore.database._queries import Queries, among
from detcore.database._schema import metrics, trials, validation_values

__all__ = ["CurveQueries", "MetricCurve"]

# Reports with a NaN are looked at one by one; of more than these, some are not counted.
_MAX_NAN = 20_000


@dataclasses.dataclass(slots=True)
class MetricCurve:
    """A metric of a trial over steps.

    Attributes:
        points: Steps and values, in the order of steps. Values may be infinite or NaN in a curve
            of training; NaN is left out of one of validations.
        num_nan: How many values of validations are NaN.
        times: When each point was reported, in seconds since 1970.
    """

    points: list[tuple[int, float]] = dataclasses.field(default_factory=list)
    num_nan: int = 0
    times: list[float] = dataclasses.field(default_factory=list)


class CurveQueries(Queries):
    """Read metrics to be drawn."""

    def metric_names(self, experiment_id: int) -> list[tuple[str, str]]:
        """Return kind and name of the metrics of an experiment, validation first.

        Those of training are the names in the last report of each trial.
        """
        named = (
            select(validation_values.c.name)
            .where(validation_values.c.experiment_id == experiment_id)
            .distinct()
        )
        last = select(metrics.c.id).where(  # a look-up in an index for each trial
            metrics.c.trial_id == trials.c.id, metrics.c.kind == "training"
        ).order_by(metrics.c.steps_completed.desc(), metrics.c.id.desc()).limit(1)  # fmt: skip
        newest = select(last.scalar_subquery()).where(trials.c.experiment_id == experiment_id)
        with self._read() as connection:
            names = {("validation", name) for name in connection.execute(named).scalars()}
            for text in connection.execute(
                select(metrics.c.metrics).where(metrics.c.id.in_(newest))
            ).scalars():
                names |= {
                    ("training", name)
                    for name, value in decode_metrics(text).items()
                    if isinstance(value, (int, float)) and not isinstance(value, bool)
                }
        return sorted(names, key=lambda name: (name[0] != "validation", name[1]))

    def metric_curves(
        self,
        experiment_id: int,
        kind: str,
        name: str,
        *,
        parts: int = 200,
        trial_ids: Sequence[int] | None = None,
        steps: tuple[int, int] | None = None,
    ) -> dict[int, MetricCurve]:
        """Return a metric of the trials of an experiment.

        The steps are cut into equal parts. Of a validation metric the smallest and the largest
        value of each part are returned, so that no peak is lost, of a training metric the last
        report of each part; of both the first and the last report, too. Where several runs of a
        trial reported a step, the last one counts.

        Args:
            experiment_id: Which experiment.
            kind: "training" or "validation".
            name: Which metric.
            parts: In how many parts the steps are cut; >= 1.
            trial_ids: Only these trials; None = all.
            steps: First and last step to read, both included; None = all.

        Returns:
            Curves by trial; those without a point are left out.
        """
        curves: dict[int, MetricCurve] = {}
        with self._read() as connection:
            for trial_filter in among(trials.c.id, trial_ids):
                which = _of(experiment_id, kind, trial_filter)
                if steps is not None:
                    which &= metrics.c.steps_completed.between(*steps)
                ends = connection.execute(
                    select(
                        func.min(metrics.c.steps_completed), func.max(metrics.c.steps_completed)
                    ).where(which)
                ).one()
                if ends[0] is None:
                    continue
                part = _part(ends[0], ends[1], parts)
                if kind == "validation":
                    _read_values(connection, curves, _extremes(which, name, part))
                    _count_nan(connection, curves, which, name)
                else:
                    _read_reports(connection, curves, _samples(which, part), name)
        return curves


def _of(experiment_id: int, kind: str, which: ColumnElement[bool] | None) -> ColumnElement[bool]:
    owned = select(trials.c.id).where(trials.c.experiment_id == experiment_id)
    if which is not None:
        owned = owned.where(which)
    return metrics.c.trial_id.in_(owned) & (metrics.c.kind == kind)


def _part(first: int, last: int, parts: int) -> ColumnElement[int]:
    """Return in which part of the steps a report is."""
    # As floats: steps times parts may be too large for an integer.
    share = (metrics.c.steps_completed - first) * (1.0 * parts / (last - first + 1))
    return cast(func.floor(share), Integer)


def _over(order: Sequence[Any], *groups: ColumnElement[Any]) -> ColumnElement[int]:
    return func.row_number().over(partition_by=[metrics.c.trial_id, *groups], order_by=list(order))


def _extremes(which: ColumnElement[bool], name: str, part: ColumnElement[int]) -> Subquery:
    value, step = validation_values.c.value, metrics.c.steps_completed
    return (
        select(
            metrics.c.trial_id, step, value, metrics.c.reported_at,
            _over([value, step], part).label("lowest"),
            _over([value.desc(), step], part).label("highest"),
            _over([step]).label("first"),
            _over([step.desc()]).label("last"),
        )
        .join(validation_values, validation_values.c.metric_id == metrics.c.id)
        .where(which, validation_values.c.name == name, is_current())
        .subquery()
    )  # fmt: skip


def _samples(which: ColumnElement[bool], part: ColumnElement[int]) -> Subquery:
    step = metrics.c.steps_completed
    return (
        select(
            metrics.c.trial_id, step, metrics.c.metrics, metrics.c.reported_at,
            _over([step.desc()], part).label("lowest"),
            _over([step]).label("first"),
        )
        .where(which, is_current())
        .subquery()
    )  # fmt: skip


def _read_values(connection: Connection, curves: dict[int, MetricCurve], rows: Subquery) -> None:
    places = (rows.c.lowest, rows.c.highest, rows.c.first, rows.c.last)
    query = select(rows.c.trial_id, rows.c.steps_completed, rows.c.value, rows.c.reported_at).where(
        or_(*[place == 1 for place in places])
    )
    for trial_id, step, value, moment in connection.execute(
        query.order_by(*list(query.selected_columns)[:2])
    ):
        curve = curves.setdefault(trial_id, MetricCurve())
        curve.points.append((step, value))
        curve.times.append(moment)


def _read_reports(
    connection: Connection, curves: dict[int, MetricCurve], rows: Subquery, name: str
) -> None:
    query = select(
        rows.c.trial_id, rows.c.steps_completed, rows.c.metrics, rows.c.reported_at
    ).where(or_(rows.c.lowest == 1, rows.c.first == 1))
    for trial_id, step, text, moment in connection.execute(
        query.order_by(*list(query.selected_columns)[:2])
    ):
        value = decode_metrics(text).get(name)
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            curve = curves.setdefault(trial_id, MetricCurve())
            curve.points.append((step, value))
            curve.times.append(moment)


def _count_nan(
    connection: Connection, curves: dict[int, MetricCurve], which: ColumnElement[bool], name: str
) -> None:
    """Count NaN values, which have no rows in `validation_values`."""
    query = (
        select(metrics.c.trial_id, metrics.c.metrics)
        .where(which, metrics.c.metrics.like('%"NaN"%'), is_current())
        .limit(_MAX_NAN)
    )
    for trial_id, text in connection.execute(query):
        value = decode_metrics(text).get(name)
        if isinstance(value, float) and math.isnan(value):
            curves.setdefault(trial_id, MetricCurve()).num_nan += 1
