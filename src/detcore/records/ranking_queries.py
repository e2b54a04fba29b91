"""Queries that rank checkpoints and trials by a validation metric, and summarize trials."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, Select, Table, and_, exists, func, select
from sqlalchemy.sql.elements import ColumnElement

from detcore.records.checkpoint_queries import select_latest
from detcore.records.event_application import COMPLETED
from detcore.records.metric_queries import AT_ITS_STEP, is_current, select_best
from detcore.records.queries import Queries, make_in_conditions, require_row
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

# Limits above this number read the complete ranking instead of pages.
_FEW = 200


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RankedCheckpoint:
    """A checkpoint in a ranking by a metric.

    Attributes:
        value: The value that ranks it, or None.
        value_steps: The step of the validation with this value, or None. It differs from the step
            of the checkpoint if its trial has no checkpoint at a step with a value.
        validation: The validation at the checkpoint's step, or None.
    """

    checkpoint: CheckpointRecord
    value: float | None
    value_steps: int | None
    validation: MetricRecord | None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RankedTrial:
    """A trial in a ranking by its best value of a metric.

    Attributes:
        value: The best value, or None.
        steps_completed: The step of the best value, or None.
    """

    trial: TrialRecord
    value: float | None
    steps_completed: int | None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TrialSummary:
    """The values that a list shows for a trial.

    Attributes:
        num_runs: Number of runs.
        steps_completed: Largest step of all reports; 0 without reports.
        best: The best validation, or None; see `Database.trial_best_validation`.
        latest_checkpoint: UUID of the COMPLETED checkpoint with the most steps, or None.
        steps_saved: Step of this checkpoint; 0 without a checkpoint.
    """

    num_runs: int
    steps_completed: int
    best: MetricRecord | None
    latest_checkpoint: str | None
    steps_saved: int


class RankingQueries(Queries):
    """Rank and summarize, at a cost that does not grow with the number of records."""

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

        A checkpoint is ranked by the validation at its own step, from the last run that reported
        it. If a trial has no checkpoint at a step with a value, a substitute is ranked by the best
        validation of the trial: its nearest later checkpoint, or its latest checkpoint if no later
        checkpoint exists. Checkpoints whose metric is missing, NaN or not a number come last. Among
        equal values, checkpoints of earlier trials come first, then checkpoints with fewer steps.

        Args:
            experiment_id: Rank checkpoints of this experiment. Pass either this or `trial_id`.
            trial_id: Rank checkpoints of this trial.
            metric: Name of a validation metric.
            smaller_is_better: Whether a smaller value is better.
            limit: Maximum number of results; None = all.
            distinct_trials: Whether to return only the best checkpoint of each trial.

        Raises:
            NotFoundError: If the experiment or the trial does not exist.
        """
        with self._begin_read() as connection:
            if trial_id is None:
                assert experiment_id is not None
                require_row(connection, experiments, experiment_id)
            else:
                require_row(connection, trials, trial_id)
            key = checkpoints.c.trial_id if distinct_trials else checkpoints.c.uuid
            valued = _select_valued(experiment_id, trial_id, metric, smaller_is_better)
            ranked: list[Mapping[str, Any]] = _read_ranked(connection, valued, limit, key)
            owner = _owned_by(validation_values, experiment_id, trial_id)
            stand_ins = _find_stand_ins(
                connection, owner, metric, smaller_is_better, limit=limit, ranked=ranked
            )
            ranked = sorted(
                [*ranked, *stand_ins], key=lambda row: _sort_key(row, smaller_is_better)
            )[:limit]
            ranked = _read_ranked(
                connection, _select_complete(experiment_id, trial_id), limit, key, ranked
            )
            uuids = [row["uuid"] for row in ranked]
            records = _read_checkpoints(connection, uuids)
            validations = _read_validations(connection, uuids)
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
        """Return the validation at each checkpoint's step, from the last run that reported it.

        Checkpoints without a validation and unknown checkpoints are left out.
        """
        with self._begin_read() as connection:
            return _read_validations(connection, list(uuids))

    def top_trials(
        self,
        experiment_id: int,
        *,
        metric: str,
        smaller_is_better: bool,
        limit: int | None = None,
    ) -> list[RankedTrial]:
        """Return trials sorted by their best validation, the best first.

        Trials without a value, or with NaN, come last. Among equal values, the earlier trial comes
        first.

        Args:
            experiment_id: The experiment.
            metric: Name of a validation metric.
            smaller_is_better: Whether a smaller value is better.
            limit: Maximum number of results; None = all.

        Raises:
            NotFoundError: If no experiment has this id.
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
        all_trials = (
            select(trials.c.id).where(trials.c.experiment_id == experiment_id).order_by(trials.c.id)
        )
        with self._begin_read() as connection:
            require_row(connection, experiments, experiment_id)
            ranked = _read_ranked(connection, valued, limit, trials.c.id)
            ranked = _read_ranked(connection, all_trials, limit, trials.c.id, ranked)
            records = {
                trial.id: trial
                for condition in make_in_conditions(trials.c.id, [row["id"] for row in ranked])
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
            experiment_id: The experiment.
            metric: The metric that determines the best validation; None = no best validation.
            smaller_is_better: Whether a smaller value is better.
            trial_ids: Summarize only these trials; None = all.

        Raises:
            NotFoundError: If no experiment has this id.
        """
        query = select(
            trials.c.id,
            _select_num_runs().label("num_runs"),
            _select_steps("training").label("trained"),
            _select_steps("validation").label("validated"),
            _select_latest(checkpoints.c.uuid).label("latest"),
            _select_latest(checkpoints.c.steps_completed).label("saved"),
            *([] if metric is None else [_select_best(metric, smaller_is_better).label("best")]),
        ).where(trials.c.experiment_id == experiment_id)
        with self._begin_read() as connection:
            rows = [
                row
                for condition in make_in_conditions(trials.c.id, trial_ids)
                for row in connection.execute(query.where(condition).order_by(trials.c.id))
            ]
            if not rows:
                require_row(connection, experiments, experiment_id)
            best: dict[int, MetricRecord] = {}
            metric_ids = [row.best for row in rows if metric is not None and row.best is not None]
            for condition in make_in_conditions(metrics.c.id, metric_ids):
                best_rows = connection.execute(select(metrics).where(condition))
                records = read_rows(MetricRecord, best_rows)
                best |= {record.trial_id: record for record in records}
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


def _select_valued(
    experiment_id: int | None, trial_id: int | None, metric: str, smaller_is_better: bool
) -> Select[Any]:
    """Return the query of COMPLETED checkpoints with a value, the best first."""
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
    """Return substitutes for the best trials without a checkpoint at a step with a value.

    Args:
        connection: The connection.
        owner: A condition on `validation_values`.
        metric: The metric.
        smaller_is_better: Whether a smaller value is better.
        limit: Maximum number of results; None = all.
        ranked: The best checkpoints with a value. If they reach the limit, only better checkpoints
            are returned.
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
        for row in _read_ranked(connection, query, limit, validation_values.c.trial_id)
    ]


def _find_nearest(connection: Connection, trial_id: int, steps: int) -> str:
    """Return the UUID of a trial's nearest later COMPLETED checkpoint, or of its latest."""
    completed = select(checkpoints.c.uuid).where(
        checkpoints.c.trial_id == trial_id, checkpoints.c.state == COMPLETED
    )
    later = completed.where(checkpoints.c.steps_completed > steps).order_by(
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
    """Return the condition that a value was reported at a checkpoint's step."""
    report, value = metrics.alias("report"), validation_values.alias("value_of_report")
    return exists().where(
        report.c.trial_id == checkpoints.c.trial_id,
        report.c.kind == "validation",
        report.c.steps_completed == checkpoints.c.steps_completed,
        value.c.metric_id == report.c.id,
        value.c.name == metric,
        is_current(report, is_last=True),
    )


def _sort_key(row: Mapping[str, Any], smaller_is_better: bool) -> tuple[float, int, int]:
    value = row["value"] if smaller_is_better else -row["value"]
    return value, row["trial_id"], row["value_steps"]


def _owned_by(table: Table, experiment_id: int | None, trial_id: int | None) -> ColumnElement[bool]:
    """Return the condition that a row belongs to an experiment, or to one trial."""
    if trial_id is None:
        return table.c.experiment_id == experiment_id
    return table.c.trial_id == trial_id


def _select_complete(experiment_id: int | None, trial_id: int | None) -> Select[Any]:
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


def _read_ranked(
    connection: Connection,
    query: Select[Any],
    limit: int | None,
    key: ColumnElement[Any],
    first: Sequence[Mapping[str, Any]] = (),
) -> list[Mapping[str, Any]]:
    """Return the rows `first` and then the rows of a query, with each value of `key` once.

    Many rows of a trial may precede the next trial, so each page of the query excludes the keys of
    earlier pages.
    """
    name = str(key.key)
    ranked: dict[Any, Mapping[str, Any]] = {row[name]: row for row in first}
    while limit is None or len(ranked) < limit:
        page, num_rows, page_size = query, 0, 0
        if limit is not None and limit <= _FEW:
            page_size = 2 * (limit - len(ranked)) + 2
            page = query.where(key.not_in(list(ranked))).limit(page_size)
        for row in connection.execute(page):
            num_rows += 1
            ranked.setdefault(row._mapping[name], dict(row._mapping))
            if len(ranked) == limit:
                return list(ranked.values())
        if page_size == 0 or num_rows < page_size:
            break
    return list(ranked.values())


def _read_checkpoints(connection: Connection, uuids: Sequence[str]) -> dict[str, CheckpointRecord]:
    return {
        record.uuid: record
        for condition in make_in_conditions(checkpoints.c.uuid, uuids)
        for record in read_rows(
            CheckpointRecord, connection.execute(select(checkpoints).where(condition))
        )
    }


def _read_validations(connection: Connection, uuids: Sequence[str]) -> dict[str, MetricRecord]:
    validations: dict[str, MetricRecord] = {}
    for condition in make_in_conditions(checkpoints.c.uuid, uuids):
        rows = connection.execute(
            select(metrics, checkpoints.c.uuid)
            .join(checkpoints, AT_ITS_STEP)
            .where(condition)
            .order_by(metrics.c.run_id, metrics.c.id)
        ).all()
        records = read_rows(MetricRecord, rows)  # a later record replaces an earlier record
        validations |= {row.uuid: record for row, record in zip(rows, records, strict=True)}
    return validations


# The following subqueries of one trial are index look-ups.


def _select_num_runs() -> Any:
    return select(func.count()).where(runs.c.trial_id == trials.c.id).scalar_subquery()


def _select_steps(kind: str) -> Any:
    return (
        select(func.max(metrics.c.steps_completed))
        .where(metrics.c.trial_id == trials.c.id, metrics.c.kind == kind)
        .scalar_subquery()
    )


def _select_latest(what: Any) -> Any:
    owner = checkpoints.c.trial_id == trials.c.id
    return select_latest(select(what), owner).scalar_subquery()


def _select_best(metric: str, smaller_is_better: bool) -> Any:
    owner = validation_values.c.trial_id == trials.c.id
    query = select_best(select(metrics.c.id), owner, metric, smaller_is_better)
    return query.correlate(trials).scalar_subquery()
