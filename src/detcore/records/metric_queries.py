"""Queries on metrics and on the other records of an event log."""

from __future__ import annotations

import datetime
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, Select, and_, exists, func, insert, or_, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.sql.elements import ColumnElement
from sqlalchemy.sql.expression import FromClause

from detcore.contract.errors import DatabaseError
from detcore.log import events as log_events
from detcore.log.lines import encode_metrics
from detcore.records.column_types import MAX_INDEXED, EncodedJson, replace_unstorable
from detcore.records.queries import Queries, now, require_row
from detcore.records.record_classes import EventRecord, MetricRecord, read_rows
from detcore.records.schema import checkpoints, events, metrics, trials, validation_values

# Join condition of a checkpoint and the validation of its trial at the checkpoint's step.
AT_ITS_STEP = and_(
    metrics.c.trial_id == checkpoints.c.trial_id,
    metrics.c.steps_completed == checkpoints.c.steps_completed,
    metrics.c.kind == "validation",
)
# Databases limit the parameters of a statement: SQLite 32,766, PostgreSQL 65,535.
_VALUES_AT_ONCE = 1000


class MetricQueries(Queries):
    """Write and read metrics. Workers write to an event log instead."""

    def add_metrics(self, rows: Iterable[MetricRecord]) -> None:
        """Record reports of metrics, all or none.

        Raises:
            NotFoundError: If a trial does not exist.
            DatabaseError: If a report with the same run and sequence number is already recorded.
        """
        table_rows = [
            make_metric_row(
                record,
                trial_id=record.trial_id,
                run_id=record.run_id,
                seq=record.seq,
                kind=record.kind,
                reported_at=record.reported_at or now(),
            )
            for record in rows
        ]
        try:
            with self._begin_write() as connection:
                for trial_id in {row["trial_id"] for row in table_rows}:
                    require_row(connection, trials, trial_id)
                insert_metrics(connection, table_rows)
        except IntegrityError as error:
            raise DatabaseError(f"these metrics are already recorded: {error.orig}") from error

    def metrics(
        self,
        trial_id: int,
        kind: str,
        *,
        with_batches: bool = True,
        newest: int | None = None,
        run_id: int | None = None,
    ) -> list[MetricRecord]:
        """Return the reports of a trial, in the order of steps.

        If several runs of the trial reported the same step, only the reports of the last run are
        returned.

        Args:
            trial_id: The trial.
            kind: "training" or "validation".
            with_batches: Whether to read `MetricRecord.batch_metrics`, which may be long.
            newest: Maximum number of reports, with the most steps; None = all.
            run_id: Return only reports of this run; None = all.

        Raises:
            NotFoundError: If no trial has this id.
        """
        columns = [
            column for column in metrics.c if with_batches or column is not metrics.c.batch_metrics
        ]
        with self._begin_read() as connection:
            query = select(*columns).where(
                metrics.c.trial_id == trial_id, metrics.c.kind == kind, is_current()
            )
            if run_id is not None:
                query = query.where(metrics.c.run_id == run_id)
            if newest is None:
                query = query.order_by(metrics.c.steps_completed, metrics.c.id)
            else:
                steps, number = metrics.c.steps_completed.desc(), metrics.c.id.desc()
                query = query.order_by(steps, number).limit(newest)
            rows = connection.execute(query).fetchall()
            if not rows:
                require_row(connection, trials, trial_id)
        if newest is not None:
            rows = rows[::-1]
        return read_rows(MetricRecord, rows)

    def count_metrics(self, trial_id: int, kind: str) -> int:
        """Return the number of reports that `metrics` would return."""
        owner = and_(metrics.c.trial_id == trial_id, metrics.c.kind == kind)
        run, step = metrics.c.run_id, metrics.c.steps_completed
        ends = [
            select(end(run)).where(metrics.c.trial_id == trial_id).scalar_subquery()
            for end in (func.min, func.max)
        ]
        with self._begin_read() as connection:
            total = connection.execute(select(func.count()).where(owner)).scalar_one()
            first_run, last_run = connection.execute(select(*ends)).one()
            if first_run == last_run:
                return total
            # Only the steps that a later run has reached can be reported twice.
            reached = select(func.min(step)).where(owner, run > first_run).scalar_subquery()
            replaced = select(func.count()).where(
                owner, run < last_run, step >= reached, ~is_current()
            )
            return total - connection.execute(replaced).scalar_one()

    def validation_at(self, trial_id: int, steps_completed: int) -> MetricRecord | None:
        """Return the validation of a trial at a step, from the last run, or None."""
        query = select(metrics).where(
            metrics.c.trial_id == trial_id,
            metrics.c.kind == "validation",
            metrics.c.steps_completed == steps_completed,
        )
        newest = query.order_by(metrics.c.run_id.desc(), metrics.c.id.desc())
        return self._read_first(MetricRecord, newest)

    def best_validation(
        self, experiment_id: int, metric: str, *, smaller_is_better: bool
    ) -> MetricRecord | None:
        """Return the validation with the best value of a metric, over all trials.

        Reports without the metric, or with NaN, do not count. Among equal values, the validation
        with fewer steps is returned. Validations that a later run of the trial repeated do not
        count.

        Returns:
            None if no validation counts.
        """
        return self._find_best(
            validation_values.c.experiment_id == experiment_id, metric, smaller_is_better
        )

    def trial_best_validation(
        self, trial_id: int, metric: str, *, smaller_is_better: bool
    ) -> MetricRecord | None:
        """Return the best validation of one trial; see `best_validation`."""
        return self._find_best(validation_values.c.trial_id == trial_id, metric, smaller_is_better)

    def events(self, trial_id: int, kind: str | None = None) -> list[EventRecord]:
        """Return the records of a trial's event logs other than metrics, oldest first."""
        query = select(events).where(events.c.trial_id == trial_id)
        if kind is not None:
            query = query.where(events.c.kind == kind)
        return self._read_all(EventRecord, query.order_by(events.c.id))

    def _find_best(
        self, owner: ColumnElement[bool], metric: str, smaller_is_better: bool
    ) -> MetricRecord | None:
        query = select_best(select(metrics), owner, metric, smaller_is_better)
        return self._read_first(MetricRecord, query)


def select_best(
    what: Select[Any], owner: ColumnElement[bool], metric: str, smaller_is_better: bool
) -> Select[Any]:
    """Return the query of the validation with the best value of a metric.

    Args:
        what: A selection from `metrics`.
        owner: A condition on `validation_values`.
        metric: The metric.
        smaller_is_better: Whether a smaller value is better.
    """
    value = validation_values.c.value
    return (
        what.join(validation_values, validation_values.c.metric_id == metrics.c.id)
        .where(owner, validation_values.c.name == metric, is_current())
        .order_by(
            value.asc() if smaller_is_better else value.desc(),
            metrics.c.steps_completed,
            metrics.c.id,
        )
        .limit(1)
    )


def is_current(report: FromClause = metrics, *, is_last: bool = False) -> ColumnElement[bool]:
    """Return the condition that no later run reported the same step.

    Args:
        report: The table `metrics` or an alias.
        is_last: Whether to exclude steps that the same run reported again later.
    """
    later = metrics.alias("later")
    after = later.c.run_id > report.c.run_id
    if is_last:
        again = and_(later.c.run_id == report.c.run_id, later.c.id > report.c.id)
        after = or_(after, again)
    return ~exists().where(
        later.c.trial_id == report.c.trial_id,
        later.c.kind == report.c.kind,
        later.c.steps_completed == report.c.steps_completed,
        after,
    )


def make_metric_row(
    report: log_events.TrainingReport | log_events.ValidationReport | MetricRecord,
    *,
    trial_id: int,
    run_id: int,
    seq: int | None,
    kind: str,
    reported_at: datetime.datetime,
) -> dict[str, Any]:
    """Return the row of a report. The key "values" contains the numbers of a validation.

    Raises:
        RecursionError: If the report is nested too deep.
    """
    batches = report.batch_metrics
    return {
        "trial_id": trial_id,
        "run_id": run_id,
        "seq": seq,
        "kind": kind,
        "steps_completed": report.steps_completed,
        "metrics": EncodedJson(encode_metrics(report.metrics)),
        "batch_metrics": None if batches is None else EncodedJson(encode_metrics(batches)),
        "n_records": report.n_records,
        "reported_at": reported_at,
        "values": select_numbers(report.metrics) if kind == "validation" else {},
    }


def select_numbers(metrics: Mapping[str, Any]) -> dict[str, float]:
    """Return the metrics that can be ranked."""
    numbers = {}
    for name, value in metrics.items():
        try:
            number = float(value)
        except (TypeError, ValueError, OverflowError):
            continue  # an array, a string, a nested metric: recorded, but not ranked
        if not (isinstance(value, str) or math.isnan(number)) and len(name) <= MAX_INDEXED:
            numbers[replace_unstorable(name)] = number  # two names may become equal
    return numbers


def insert_metrics(connection: Connection, rows: Sequence[dict[str, Any]]) -> None:
    """Insert rows of `make_metric_row`."""
    table_rows = [{key: row[key] for key in row if key != "values"} for row in rows]
    single = [row for row, full in zip(table_rows, rows, strict=True) if not full["values"]]
    if single:
        connection.execute(insert(metrics), single)
    for row, full in zip(table_rows, rows, strict=True):
        if full["values"]:
            _insert_validation(connection, row, full["values"])


def _insert_validation(
    connection: Connection, row: dict[str, Any], values: dict[str, float]
) -> None:
    created = connection.execute(insert(metrics).values(**row))
    metric_id = created.inserted_primary_key[0]  # type: ignore[index]  # of a single row
    experiment_id = (
        select(trials.c.experiment_id).where(trials.c.id == row["trial_id"]).scalar_subquery()
    )
    rows = [
        {
            "metric_id": metric_id,
            "name": name,
            "experiment_id": experiment_id,
            "trial_id": row["trial_id"],
            "value": value,
        }
        for name, value in values.items()
    ]
    for start in range(0, len(rows), _VALUES_AT_ONCE):
        part = rows[start : start + _VALUES_AT_ONCE]
        connection.execute(insert(validation_values).values(part))
