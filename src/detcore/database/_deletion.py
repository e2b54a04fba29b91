"""Deleting an experiment's records."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, Table, delete, func, insert, select, update

from detcore.database._queries import Queries, require
from detcore.database._schema import (
    checkpoints,
    events,
    experiment_labels,
    experiments,
    last_ids,
    metrics,
    model_versions,
    models,
    runs,
    search_events,
    spools,
    submissions,
    tokens,
    trials,
    validation_values,
)
from detcore.errors import CheckpointStateError

__all__ = ["DeletionQueries", "note_last_id"]

_LISTED = 10


class DeletionQueries(Queries):
    """Remove experiments."""

    def delete_experiment(self, experiment_id: int) -> None:
        """Remove an experiment and all records that belong to it; files are the caller's business.

        Its id, and those of its trials, are not given again.

        Raises:
            NotFoundError: If no experiment has that id.
            CheckpointStateError: If one of its checkpoints is in the model registry.
        """
        mine = trials.c.experiment_id == experiment_id
        with self._write() as connection:
            require(connection, experiments, "experiment", experiment_id)
            _refuse_registered(connection, experiment_id)
            for table in (experiments, trials):
                note_last_id(connection, table)
            values = validation_values
            connection.execute(delete(values).where(values.c.experiment_id == experiment_id))
            for table in (metrics, events, spools, runs, tokens):
                connection.execute(
                    delete(table).where(table.c.trial_id.in_(select(trials.c.id).where(mine)))
                )
            for table in (checkpoints, search_events, experiment_labels, submissions, trials):
                connection.execute(delete(table).where(table.c.experiment_id == experiment_id))
            connection.execute(delete(experiments).where(experiments.c.id == experiment_id))


def note_last_id(connection: Connection, table: Table) -> None:
    """Remember the highest id of a table before rows are deleted; see `unused_id`."""
    here = last_ids.c.name == table.name
    newest: Any = connection.execute(select(func.max(table.c.id))).scalar()
    known = connection.execute(select(last_ids.c.last_id).where(here)).scalar()
    if known is None:
        connection.execute(insert(last_ids).values(name=table.name, last_id=newest or 0))
    elif newest is not None and newest > known:
        connection.execute(update(last_ids).where(here).values(last_id=newest))


def _refuse_registered(connection: Connection, experiment_id: int) -> None:
    rows = connection.execute(
        select(models.c.name, model_versions.c.number)
        .join(model_versions, model_versions.c.model_id == models.c.id)
        .join(checkpoints, checkpoints.c.uuid == model_versions.c.checkpoint_uuid)
        .where(checkpoints.c.experiment_id == experiment_id)
        .order_by(models.c.id, model_versions.c.number)
    ).fetchall()
    if rows:
        listed = ", ".join(f"{row.name} version {row.number}" for row in rows[:_LISTED])
        more = ", ..." if len(rows) > _LISTED else ""
        raise CheckpointStateError(
            f"checkpoints of experiment {experiment_id} are in the model registry: {listed}{more}."
            "\nA model would lose its files. Nothing was deleted.\n"
            "Delete those versions first."
        )
