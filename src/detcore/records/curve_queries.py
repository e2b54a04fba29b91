"""Downsampled metric curves for plots, one query for many trials."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence
from typing import Any

from sqlalchemy import (
    CTE,
    ColumnElement,
    Integer,
    Select,
    Subquery,
    Text,
    and_,
    case,
    cast,
    func,
    or_,
    select,
    type_coerce,
)
from sqlalchemy.engine import Connection

from detcore.records.metric_queries import is_current
from detcore.records.queries import Queries, make_in_conditions
from detcore.records.schema import metrics, trials, validation_values

# Reports with NaN are read one by one. Reports beyond this number are not counted.
_MAX_NAN = 20_000


@dataclasses.dataclass(slots=True)
class MetricCurve:
    """A metric of a trial over steps.

    Attributes:
        points: Steps and values, in the order of steps. Values of a training metric may be infinite
            or NaN. NaN values of a validation metric are left out.
        num_nan: Number of NaN values of a validation metric.
        times: Time of the report of each point, in seconds since 1970.
    """

    points: list[tuple[int, float]] = dataclasses.field(default_factory=list)
    num_nan: int = 0
    times: list[float] = dataclasses.field(default_factory=list)


class CurveQueries(Queries):
    """Read metrics for plots."""

    def metric_names(self, experiment_id: int) -> list[tuple[str, str]]:
        """Return kind and name of the metrics of an experiment, validation metrics first.

        Training metrics are the names in the last report of each trial.
        """
        last = select(metrics.c.id).where(  # a look-up in an index for each trial
            metrics.c.trial_id == trials.c.id, metrics.c.kind == "training"
        ).order_by(metrics.c.steps_completed.desc(), metrics.c.id.desc()).limit(1)  # fmt: skip
        newest = select(last.scalar_subquery()).where(trials.c.experiment_id == experiment_id)
        with self._begin_read() as connection:
            validated = connection.execute(_validation_names(experiment_id)).scalars()
            names = {("validation", name) for name in validated if name is not None}
            for reported in connection.execute(
                select(metrics.c.metrics).where(metrics.c.id.in_(newest))
            ).scalars():
                names |= {
                    ("training", name) for name, value in reported.items() if _is_number(value)
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

        The steps are divided into equal parts. For a validation metric, the smallest and the
        largest value of each part are returned, so that no peak is lost. For a training metric, the
        last report of each part is returned. The first and the last report are always returned. If
        several runs of a trial reported a step, the last run counts.

        Args:
            experiment_id: The experiment.
            kind: "training" or "validation".
            name: Name of the metric.
            parts: Number of parts; >= 1.
            trial_ids: Read only these trials; None = all.
            steps: First and last step to read, both inclusive; None = all.

        Returns:
            Curves by trial. Trials without points are left out.
        """
        curves: dict[int, MetricCurve] = {}
        with self._begin_read() as connection:
            for trial_filter in make_in_conditions(trials.c.id, trial_ids):
                owner = and_(trials.c.experiment_id == experiment_id, trial_filter)
                ends = _find_ends(connection, owner, kind, steps)
                if ends is None:
                    continue
                if kind == "validation":
                    which = and_(
                        metrics.c.trial_id.in_(select(trials.c.id).where(owner)),
                        metrics.c.kind == kind,
                        metrics.c.steps_completed.between(*ends),
                    )
                    extremes = _select_extremes(which, name, _compute_part(*ends, parts))
                    points = _read_values(connection, extremes)
                else:
                    samples = _select_samples(owner, kind, ends, parts)
                    points = _read_reports(connection, samples, name)
                for trial_id, step, value, moment in points:
                    curve = curves.setdefault(trial_id, MetricCurve())
                    curve.points.append((step, value))
                    curve.times.append(moment)
                if kind == "validation":
                    _count_nan(connection, curves, which, name)
        return curves


def _validation_names(experiment_id: int) -> Select[Any]:
    """Return the query of the names of validation metrics and NULL, with one look-up per name."""
    first = select(func.min(validation_values.c.name)).where(
        validation_values.c.experiment_id == experiment_id
    )
    names = select(first.scalar_subquery().label("name")).cte("named", recursive=True)
    following = first.where(validation_values.c.name > names.c.name)
    return select(
        names.union_all(select(following.scalar_subquery()).where(names.c.name.is_not(None))).c.name
    )


def _find_ends(
    connection: Connection, owner: ColumnElement[bool], kind: str, steps: tuple[int, int] | None
) -> tuple[int, int] | None:
    """Return the first and the last step of reports, or None if there are no reports."""
    # One end at a time, because each is an index look-up.
    between = (-(2**63), 2**63 - 1) if steps is None else steps
    lowest, highest = (
        _select_end(end, trials.c.id, kind, *between) for end in (func.min, func.max)
    )
    row = connection.execute(
        select(func.min(lowest), func.max(highest)).select_from(trials).where(owner)
    ).one()
    return None if row[0] is None else (row[0], row[1])


def _compute_part(first: int, last: int, parts: int) -> ColumnElement[int]:
    """Return the index of the part that contains a report's step."""
    # Computed with floats, because steps times parts may exceed the integer range.
    share = (metrics.c.steps_completed - first) * (1.0 * parts / (last - first + 1))
    return cast(func.floor(share), Integer)


def _number_rows(order: Sequence[Any], *groups: ColumnElement[Any]) -> ColumnElement[int]:
    return func.row_number().over(partition_by=[metrics.c.trial_id, *groups], order_by=list(order))


def _select_extremes(which: ColumnElement[bool], name: str, part: ColumnElement[int]) -> Subquery:
    value, step = validation_values.c.value, metrics.c.steps_completed
    return (
        select(
            metrics.c.trial_id, step, value, metrics.c.reported_at,
            _number_rows([value, step], part).label("lowest"),
            _number_rows([value.desc(), step], part).label("highest"),
            _number_rows([step]).label("first"),
            _number_rows([step.desc()]).label("last"),
        )
        .join(validation_values, validation_values.c.metric_id == metrics.c.id)
        .where(which, validation_values.c.name == name, is_current())
        .subquery()
    )  # fmt: skip


def _select_samples(
    owner: ColumnElement[bool], kind: str, ends: tuple[int, int], parts: int
) -> Select[Any]:
    """Return the query of the first report and of the last report of each part."""
    steps = _last_steps(owner, kind, ends, parts)
    first = select(trials.c.id, _select_end(func.min, trials.c.id, kind, *ends)).where(owner)
    sample = select(steps.c.trial_id, steps.c.step).union(first).subquery()
    report = metrics.alias()
    last = (
        select(report.c.id)
        .where(
            report.c.trial_id == sample.c.trial_id,
            report.c.kind == kind,
            report.c.steps_completed == sample.c.step,
        )
        .order_by(report.c.run_id.desc(), report.c.id.desc())
        .limit(1)
    )
    return (
        select(*[column for column in metrics.c if column is not metrics.c.batch_metrics])
        .select_from(sample)
        .join(metrics, metrics.c.id == last.scalar_subquery())
        .order_by(metrics.c.trial_id, metrics.c.steps_completed)
    )


def _last_steps(owner: ColumnElement[bool], kind: str, ends: tuple[int, int], parts: int) -> CTE:
    """Return the last step with a report in each part, by trial, with one look-up per step."""
    first, last = ends
    width, num_wide = divmod(last - first + 1, parts)
    last_of_all = _select_end(func.max, trials.c.id, kind, first, last)
    steps = (
        select(trials.c.id.label("trial_id"), last_of_all.label("step"))
        .where(owner)
        .cte("found", recursive=True)
    )
    # The first parts are wider by one. Integers are used, because large floats would be inexact.
    step, edge = steps.c.step, num_wide * (width + 1)
    start = step - (step - first) % (width + 1)
    if width:
        start = case((step - first < edge, start), else_=step - (step - first - edge) % width)
    before = _select_end(func.max, steps.c.trial_id, kind, first, start - 1)
    return steps.union_all(select(steps.c.trial_id, before).where(step.is_not(None)))


def _select_end(end: Any, trial: ColumnElement[int], kind: str, first: Any, last: Any) -> Any:
    """Return the subquery of the first or last step of a trial's reports between two steps."""
    step = metrics.c.steps_completed
    return (
        select(end(step))
        .where(metrics.c.trial_id == trial, metrics.c.kind == kind, step.between(first, last))
        .scalar_subquery()
    )


def _read_values(connection: Connection, rows: Subquery) -> Iterator[tuple[int, int, float, float]]:
    """Yield trial, step, value and time of the extremes, sorted by trial and step."""
    places = (rows.c.lowest, rows.c.highest, rows.c.first, rows.c.last)
    query = select(rows.c.trial_id, rows.c.steps_completed, rows.c.value, rows.c.reported_at)
    query = query.where(or_(*[place == 1 for place in places]))
    for row in connection.execute(query.order_by(rows.c.trial_id, rows.c.steps_completed)):
        yield row.trial_id, row.steps_completed, row.value, row.reported_at.timestamp()


def _read_reports(
    connection: Connection, query: Select[Any], name: str
) -> Iterator[tuple[int, int, float, float]]:
    for row in connection.execute(query):
        value = row.metrics.get(name)
        if _is_number(value):
            yield row.trial_id, row.steps_completed, value, row.reported_at.timestamp()


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _count_nan(
    connection: Connection, curves: dict[int, MetricCurve], which: ColumnElement[bool], name: str
) -> None:
    """Count NaN values, which have no rows in `validation_values`."""
    query = (
        select(metrics.c.trial_id, metrics.c.metrics)
        .where(which, type_coerce(metrics.c.metrics, Text).like('%"NaN"%'), is_current())
        .limit(_MAX_NAN)
    )
    for trial_id, reported in connection.execute(query):
        value = reported.get(name)
        if isinstance(value, float) and math.isnan(value):
            curves.setdefault(trial_id, MetricCurve()).num_nan += 1
