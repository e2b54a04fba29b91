"""The best checkpoints and trials by a validation metric, and what lists show of trials."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, Select, Table, and_, exists, func, select
from sqlalchemy.sql.elements import ColumnElement

from detcore.records.checkpoint_queries import select_latest
from detcore.records.event_application import COMPLETED
from detcore.records.metric_queries import AT_ITS_STEP, is_current, select_best
from detcore.records.queries import Queries, among, require
from detcore.records.record_classes import CheckpointRecord, MetricRecord, TrialRecord, read_rows
from detcore.records.schema import (
    checkpoints,
    experiments,
    metrics,
    runs,
    trials,
    validation_values,
)
from detcore.records.trial_queries import read_trials

# Beyond this many the whole order is read at once, instead of the best few.
_FEW = 200


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RankedCheckpoint:
    """A checkpoint in the order of a metric.

    Attributes:
        value: The value that it ranks by, or None.
        value_steps: The step of the validation with that value, or None. It differs from the step
            of the checkpoint if its trial has no checkpoint at a step with a value.
        validation: The validation at its step, or None.
    """

    checkpoint: CheckpointRecord
    value: float | None
    value_steps: int | None
    validation: MetricRecord | None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RankedTrial:
    """A trial in the order of its best value of a metric.

    Attributes:
        value: The best value, or None.
        steps_completed: Steps at which it was reached, or None.
    """

    trial: TrialRecord
    value: float | None
    steps_completed: int | None


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


class RankingQueries(Queries):
    """Find the best, at a cost that does not grow with the number of records; sum up trials."""

    def top_checkpoints(
        self,
        *,
        experiment_id: int | None = None,
        trial_id: int | None = None,
        metric: str,
        smaller_is_better: bool,
        limit: int | None = None,
        distinct_trials: bool = False,
    ) -> list[RankedCheckpoint]:
        """Return COMPLETED checkpoints, the best first.

        A checkpoint ranks by the validation at its own step, from the last run that reported it. If
        a trial has no checkpoint at a step with a value, one of its checkpoints ranks by the best
        validation of the trial: the nearest later checkpoint, else the latest one. Checkpoints
        without a value come last: their metric is missing, NaN or not a number. Of equal
        checkpoints, the one of the earlier trial, then the one of fewer steps, comes first.

        Args:
            experiment_id: Those of this experiment; either this or `trial_id`.
            trial_id: Those of this trial.
            metric: Name of a validation metric.
            smaller_is_better: Whether a smaller value is better.
            limit: Maximum number of results; None = all.
            distinct_trials: Whether only the best one of each trial counts.

        Raises:
            NotFoundError: If there is no such experiment or trial.
        """
        with self._read() as connection:
            if trial_id is None:
                assert experiment_id is not None
                require(connection, experiments, experiment_id)
            else:
                require(connection, trials, trial_id)
            key = checkpoints.c.trial_id if distinct_trials else checkpoints.c.uuid
            valued = _valued(experiment_id, trial_id, metric, smaller_is_better)
            ranked: list[Mapping[str, Any]] = _rank(connection, valued, limit, key)
            owner = _owned_by(validation_values, experiment_id, trial_id)
            stand_ins = _find_stand_ins(
                connection, owner, metric, smaller_is_better, limit=limit, ranked=ranked
            )
            ranked = sorted([*ranked, *stand_ins], key=lambda row: _order(row, smaller_is_better))[
                :limit
            ]
            ranked = _rank(connection, _all_whole(experiment_id, trial_id), limit, key, ranked)
            uuids = [row["uuid"] for row in ranked]
            records = _read_checkpoints(connection, uuids)
            validations = _validations(connection, uuids)
        return [
            RankedCheckpoint(
                checkpoint=records[row["uuid"]],
                value=row.get("value"),
                value_steps=row.get("value_steps"),
                validation=validations.get(row["uuid"]),
            )
            for row in ranked
        ]

    def checkpoint_validations(self, uuids: Iterable[str]) -> dict[str, MetricRecord]:
        """Return the validation at each checkpoint's own step, by the last run that reported it.

        Checkpoints without one, and unknown ones, are left out.
        """
        with self._read() as connection:
            return _validations(connection, list(uuids))

    def top_trials(
        self,
        experiment_id: int,
        *,
        metric: str,
        smaller_is_better: bool,
        limit: int | None = None,
    ) -> list[RankedTrial]:
        """Return trials by their best validation, the best first.

        Trials without a value (NaN is none) are last; of equal ones the earlier trial comes first.

        Args:
            experiment_id: Which experiment.
            metric: Name of a validation metric.
            smaller_is_better: Whether a smaller value is better.
            limit: Maximum number of results; None = all.

        Raises:
            NotFoundError: If there is no such experiment.
        """
        value = validation_values.c.value
        valued = (
            select(trials.c.id, value, metrics.c.steps_completed)
            .select_from(validation_values)
            .join(metrics, metrics.c.id == validation_values.c.metric_id)
            .join(trials, trials.c.id == validation_values.c.trial_id)
            .where(
                validation_values.c.experiment_id == experiment_id,
                validation_values.c.name == metric,
                is_current(is_last=True),
            )
            .order_by(
                value.asc() if smaller_is_better else value.desc(),
                validation_values.c.trial_id,
                metrics.c.steps_completed,
            )
        )
        rest = (
            select(trials.c.id).where(trials.c.experiment_id == experiment_id).order_by(trials.c.id)
        )
        with self._read() as connection:
            require(connection, experiments, experiment_id)
            ranked = _rank(connection, valued, limit, trials.c.id)
            ranked = _rank(connection, rest, limit, trials.c.id, ranked)
            records = {
                trial.id: trial
                for condition in among(trials.c.id, [row["id"] for row in ranked])
                for trial in read_trials(connection, condition)
            }
        return [
            RankedTrial(
                trial=records[row["id"]],
                value=row.get("value"),
                steps_completed=row.get("steps_completed"),
            )
            for row in ranked
        ]

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


def _valued(
    experiment_id: int | None, trial_id: int | None, metric: str, smaller_is_better: bool
) -> Select[Any]:
    """Return the query of whole checkpoints that have a value, the best first."""
    value = validation_values.c.value
    return (
        select(
            checkpoints.c.uuid,
            checkpoints.c.trial_id,
            value,
            metrics.c.steps_completed.label("value_steps"),
        )
        .select_from(validation_values)
        .join(metrics, metrics.c.id == validation_values.c.metric_id)
        .join(
            checkpoints,
            and_(
                checkpoints.c.trial_id == validation_values.c.trial_id,
                checkpoints.c.steps_completed == metrics.c.steps_completed,
            ),
        )
        .where(
            _owned_by(validation_values, experiment_id, trial_id),
            validation_values.c.name == metric,
            checkpoints.c.state == COMPLETED,
            is_current(is_last=True),
        )
        .order_by(
            value.asc() if smaller_is_better else value.desc(),
            validation_values.c.trial_id,
            metrics.c.steps_completed,
            checkpoints.c.committed_at,
            checkpoints.c.uuid,
        )
    )


def _find_stand_ins(
    connection: Connection,
    owner: ColumnElement[bool],
    metric: str,
    smaller_is_better: bool,
    *,
    limit: int | None,
    ranked: Sequence[Mapping[str, Any]],
) -> list[Mapping[str, Any]]:
    """Return checkpoints of the best trials that have none at a step with a value.

    Args:
        connection: The connection.
        owner: A condition on `validation_values`.
        metric: The metric.
        smaller_is_better: Whether a smaller value is better.
        limit: Maximum number of results; None = all.
        ranked: The best checkpoints with a value; a result is better, unless these are too few.
    """
    value, steps = validation_values.c.value, metrics.c.steps_completed
    query = (
        select(validation_values.c.trial_id, value, steps.label("value_steps"))
        .join(metrics, metrics.c.id == validation_values.c.metric_id)
        .where(
            owner,
            validation_values.c.name == metric,
            is_current(is_last=True),
            _has_whole_checkpoint(),
            ~_has_whole_checkpoint(_has_value(metric)),
        )
        .order_by(
            value.asc() if smaller_is_better else value.desc(), validation_values.c.trial_id, steps
        )
    )
    if limit is not None and len(ranked) == limit:
        bound = ranked[-1]["value"]
        query = query.where(value <= bound if smaller_is_better else value >= bound)
    return [
        {**row, "uuid": _find_nearest(connection, row["trial_id"], row["value_steps"])}
        for row in _rank(connection, query, limit, validation_values.c.trial_id)
    ]


def _find_nearest(connection: Connection, trial_id: int, steps: int) -> str:
    """Return the UUID of a trial's nearest later whole checkpoint, else of its latest one."""
    whole = select(checkpoints.c.uuid).where(
        checkpoints.c.trial_id == trial_id, checkpoints.c.state == COMPLETED
    )
    later = whole.where(checkpoints.c.steps_completed > steps).order_by(
        checkpoints.c.steps_completed, checkpoints.c.committed_at.desc(), checkpoints.c.uuid.desc()
    )
    uuid: str | None = connection.execute(later.limit(1)).scalar()
    if uuid is None:
        latest = select_latest(select(checkpoints.c.uuid), checkpoints.c.trial_id == trial_id)
        uuid = connection.execute(latest).scalar_one()
    return uuid


def _has_whole_checkpoint(*conditions: ColumnElement[bool]) -> ColumnElement[bool]:
    return exists().where(
        checkpoints.c.trial_id == validation_values.c.trial_id,
        checkpoints.c.state == COMPLETED,
        *conditions,
    )


def _has_value(metric: str) -> ColumnElement[bool]:
    """Return the condition that a checkpoint lies at a step with a value."""
    report, value = metrics.alias("report"), validation_values.alias("value_of_report")
    return exists().where(
        report.c.trial_id == checkpoints.c.trial_id,
        report.c.kind == "validation",
        report.c.steps_completed == checkpoints.c.steps_completed,
        value.c.metric_id == report.c.id,
        value.c.name == metric,
        is_current(report, is_last=True),
    )


def _order(row: Mapping[str, Any], smaller_is_better: bool) -> tuple[float, int, int]:
    value = row["value"] if smaller_is_better else -row["value"]
    return value, row["trial_id"], row["value_steps"]


def _owned_by(table: Table, experiment_id: int | None, trial_id: int | None) -> ColumnElement[bool]:
    """Return the condition that a row is of an experiment, or of one trial."""
    if trial_id is None:
        return table.c.experiment_id == experiment_id
    return table.c.trial_id == trial_id


def _all_whole(experiment_id: int | None, trial_id: int | None) -> Select[Any]:
    owner = _owned_by(checkpoints, experiment_id, trial_id)
    return (
        select(checkpoints.c.uuid, checkpoints.c.trial_id)
        .where(owner, checkpoints.c.state == COMPLETED)
        .order_by(
            checkpoints.c.trial_id,
            checkpoints.c.steps_completed,
            checkpoints.c.committed_at,
            checkpoints.c.uuid,
        )
    )


def _rank(
    connection: Connection,
    query: Select[Any],
    limit: int | None,
    key: ColumnElement[Any],
    first: Sequence[Mapping[str, Any]] = (),
) -> list[Mapping[str, Any]]:
    """Return the rows `first` and then those of a query, each value of `key` once.

    A trial may have many rows before the next trial's first one, so each page of the query leaves
    out the keys that are found.
    """
    name = str(key.key)
    found: dict[Any, Mapping[str, Any]] = {row[name]: row for row in first}
    while limit is None or len(found) < limit:
        page, num_rows, asked = query, 0, 0
        if limit is not None and limit <= _FEW:
            asked = 2 * (limit - len(found)) + 2
            page = query.where(key.not_in(list(found))).limit(asked)
        for row in connection.execute(page):
            num_rows += 1
            found.setdefault(row._mapping[name], dict(row._mapping))
            if len(found) == limit:
                return list(found.values())
        if asked == 0 or num_rows < asked:
            break
    return list(found.values())


def _read_checkpoints(connection: Connection, uuids: Sequence[str]) -> dict[str, CheckpointRecord]:
    return {
        record.uuid: record
        for condition in among(checkpoints.c.uuid, uuids)
        for record in read_rows(
            CheckpointRecord, connection.execute(select(checkpoints).where(condition))
        )
    }


def _validations(connection: Connection, uuids: Sequence[str]) -> dict[str, MetricRecord]:
    found: dict[str, MetricRecord] = {}
    for condition in among(checkpoints.c.uuid, uuids):
        rows = connection.execute(
            select(metrics, checkpoints.c.uuid)
            .join(checkpoints, AT_ITS_STEP)
            .where(condition)
            .order_by(metrics.c.run_id, metrics.c.id)
        ).all()
        records = read_rows(MetricRecord, rows)  # the last one counts
        found |= {row.uuid: record for row, record in zip(rows, records, strict=True)}
    return found


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
