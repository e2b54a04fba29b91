"""The best checkpoints and trials by a validation metric."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, Row, RowMapping, Select, Table, and_, select
from sqlalchemy.sql.elements import ColumnElement

from detcore._records import CheckpointRecord, MetricRecord, TrialRecord, read_rows
from detcore.database._apply import COMPLETED
from detcore.database._metrics import is_current
from detcore.database._queries import Queries, among, require
from detcore.database._schema import checkpoints, experiments, metrics, trials, validation_values
from detcore.database._trials import read_trials

__all__ = ["AT_ITS_STEP", "RankedCheckpoint", "RankedTrial", "RankingQueries"]

# Of a join: the validation of a checkpoint's trial at its own step.
AT_ITS_STEP = and_(
    metrics.c.trial_id == checkpoints.c.trial_id,
    metrics.c.steps_completed == checkpoints.c.steps_completed,
    metrics.c.kind == "validation",
)
# Beyond this many the whole order is read at once, instead of the best few.
_FEW = 200


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RankedCheckpoint:
    """A checkpoint in the order of a metric.

    Attributes:
        value: The metric at its step; None if it is missing, NaN or not a number.
        validation: The validation at its step, or None.
    """

    checkpoint: CheckpointRecord
    value: float | None
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


class RankingQueries(Queries):
    """Find the best; their cost does not grow with the number of records."""

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

        A checkpoint ranks by the validation at its own step, from the last run that reported it.
        Those whose metric is missing, NaN or not a number are last; of equal ones that of the
        earlier trial, then that of fewer steps, comes first.

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
            ranked = _rank(
                connection,
                _valued(experiment_id, trial_id, metric, smaller_is_better),
                _all_whole(experiment_id, trial_id),
                limit,
                checkpoints.c.trial_id if distinct_trials else checkpoints.c.uuid,
            )
            uuids = [row["uuid"] for row in ranked]
            records = {
                record.uuid: record
                for condition in among(checkpoints.c.uuid, uuids)
                for record in read_rows(
                    CheckpointRecord, connection.execute(select(checkpoints).where(condition))
                )
            }
            validations = _validations(connection, uuids)
        return [
            RankedCheckpoint(
                checkpoint=records[row["uuid"]],
                value=row.get("value"),
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
            ranked = _rank(connection, valued, rest, limit, trials.c.id)
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


def _valued(
    experiment_id: int | None, trial_id: int | None, metric: str, smaller_is_better: bool
) -> Select[Any]:
    """Return the query of whole checkpoints that have a value, the best first."""
    value = validation_values.c.value
    return (
        select(checkpoints.c.uuid, checkpoints.c.trial_id, value)
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
    valued: Select[Any],
    rest: Select[Any],
    limit: int | None,
    key: ColumnElement[Any],
) -> list[RowMapping]:
    """Return the first rows of `valued` and then of `rest`, each value of `key` once.

    Rows of `rest` lack what makes the order of `valued`.
    """
    found: dict[Any, RowMapping] = {}
    for query in (valued, rest):
        for row in _walk(connection, query, found, limit, key):
            fields = row._mapping
            found.setdefault(fields[str(key.key)], fields)
            if limit is not None and len(found) >= limit:
                return list(found.values())
    return list(found.values())


def _walk(
    connection: Connection,
    query: Select[Any],
    found: Mapping[Any, object],
    limit: int | None,
    key: ColumnElement[Any],
) -> Iterator[Row[Any]]:
    """Yield rows in order, at least until `limit` keys are found or there are no more.

    A trial may have many rows before the next trial's first one, so each step leaves out the
    keys that are found.
    """
    if limit is None or limit > _FEW:
        yield from connection.execute(query)
        return
    while len(found) < limit:
        asked = 2 * (limit - len(found)) + 2
        rows = connection.execute(query.where(key.not_in(list(found))).limit(asked)).fetchall()
        yield from rows
        if len(rows) < asked:
            return


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
