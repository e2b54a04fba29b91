"""Apply the events of a trial's log to the records.

Events may be late by days, and may come from an untrusted worker. An event changes only records of
its own trial, and never reverts a later decision: a checkpoint that was deleted, damaged or
recovered in the meantime keeps its state. Commands that change a checkpoint use the same
transitions.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, TypeAlias, get_args

from sqlalchemy import ColumnElement, Connection, Row, func, select, update

from detcore.contract.errors import CheckpointStateError
from detcore.contract.values import TrialState
from detcore.log import events
from detcore.records.schema import checkpoints, model_versions, models, runs, trials

CheckpointChange: TypeAlias = (
    events.CheckpointCommitted
    | events.CheckpointDeleting
    | events.CheckpointDeleted
    | events.CheckpointDamaged
)

ACTIVE, COMPLETED, DAMAGED = "ACTIVE", "COMPLETED", "DAMAGED"
PARTIALLY_DELETED, DELETING, DELETED = "PARTIALLY_DELETED", "DELETING", "DELETED"
_LISTED = 10
_GONE = frozenset({DELETING, DELETED})
_ALL = frozenset({ACTIVE, COMPLETED, DAMAGED, PARTIALLY_DELETED, DELETING, DELETED})
# Upper bound in seconds since 1970. A record with a later time could not be read again.
_MAX_TIME = 2.0**35
# Kinds of events that change more than the table of events.
APPLIED = frozenset(event.KIND for event in (*get_args(events.CheckpointEvent), events.TrialFailed))


def apply_event(
    connection: Connection, owner: tuple[int, int], event: events.Event, at: datetime
) -> bool:
    """Apply an event to the records.

    Args:
        connection: The transaction that ingests the event.
        owner: Trial and run of the log that contains the event.
        event: The event.
        at: Time of the event.

    Returns:
        Whether the event was applied. Rejected events are stored unchanged, because an event must
        never block the ingestion of its log.
    """
    if not 0 <= at.timestamp() < _MAX_TIME:
        return False
    if isinstance(event, events.CheckpointStarted):
        return _start_checkpoint(connection, owner, event, at)
    if isinstance(event, events.TrialFailed):
        return _fail_trial(connection, owner, event, at)
    if not isinstance(event, CheckpointChange):
        return False
    row = connection.execute(
        select(checkpoints)
        .where(checkpoints.c.uuid == event.uuid, checkpoints.c.trial_id == owner[0])
        .with_for_update()
    ).fetchone()
    if row is None:
        return False
    deletes = isinstance(event, events.CheckpointDeleting | events.CheckpointDeleted)
    if deletes and list_registrations(connection, checkpoints.c.uuid == event.uuid):
        return False
    try:
        change_checkpoint(connection, row, event, at)
    except (RecursionError, ValueError):  # metadata nested too deep
        return False
    return True


def change_checkpoint(
    connection: Connection,
    row: Row[Any],
    event: CheckpointChange,
    at: datetime,
    *,
    is_late: bool = True,
) -> None:
    """Move a checkpoint to the state that an event leads to, if its current state allows that.

    Args:
        connection: A writing transaction.
        row: The checkpoint's row.
        event: The reported change.
        at: Time of the change.
        is_late: Whether other processes may have changed the checkpoint since the event. False for
            a process that has just read its files.
    """
    allowed, state, columns = _plan_transition(event, at, is_late=is_late)
    if row.committed_at is not None:  # users may have added metadata
        columns.pop("metadata", None)
    if row.state in allowed:
        connection.execute(
            update(checkpoints).where(checkpoints.c.uuid == row.uuid).values(state=state, **columns)
        )


def _plan_transition(
    event: CheckpointChange, at: datetime, *, is_late: bool
) -> tuple[frozenset[str], str, dict[str, object]]:
    """Return the states in which an event applies, the new state, and changed columns."""
    if isinstance(event, events.CheckpointCommitted):
        committed: dict[str, object] = {
            "metadata": event.metadata,
            "resources": event.resources,
            "steps_completed": event.steps_completed,
            "committed_at": at,
            "deleted_at": None,
        }
        return frozenset({ACTIVE}) if is_late else _ALL - _GONE, COMPLETED, committed
    if isinstance(event, events.CheckpointDamaged):
        return _ALL - _GONE, DAMAGED, {}
    if isinstance(event, events.CheckpointDeleting):
        return _ALL - _GONE, DELETING, {"resources": {}, "deleted_at": at}
    deletion: dict[str, object] = {"resources": event.resources, "deleted_at": at}
    if event.resources:
        return _ALL - _GONE - {ACTIVE}, PARTIALLY_DELETED, deletion
    return _ALL - {DELETED}, DELETED, deletion


def insert_checkpoint(
    connection: Connection, event: events.CheckpointStarted, at: datetime, *, trial_id: int | None
) -> None:
    """Insert a checkpoint that is being written.

    Raises:
        IntegrityError: If the checkpoint is already recorded, or the trial does not exist.
    """
    owner = select(trials.c.experiment_id).where(trials.c.id == trial_id).scalar_subquery()
    connection.execute(
        checkpoints.insert().values(
            uuid=event.uuid,
            trial_id=trial_id,
            experiment_id=owner,
            storage_url=event.storage_url,
            state=ACTIVE,
            steps_completed=event.steps_completed,
            metadata={},
            resources={},
            started_at=at,
        )
    )


def _start_checkpoint(
    connection: Connection, owner: tuple[int, int], event: events.CheckpointStarted, at: datetime
) -> bool:
    trial_id = connection.execute(
        select(checkpoints.c.trial_id).where(checkpoints.c.uuid == event.uuid)
    ).scalar()
    if trial_id is None:
        insert_checkpoint(connection, event, at, trial_id=owner[0])
    return trial_id in (None, owner[0])


def _fail_trial(
    connection: Connection, owner: tuple[int, int], event: events.TrialFailed, at: datetime
) -> bool:
    """Record that a trial failed, if it is recorded as running and no later run has started."""
    trial_id, run_id = owner
    newest = connection.execute(
        select(func.max(runs.c.run_id)).where(runs.c.trial_id == trial_id)
    ).scalar()
    if newest is None or newest <= run_id:
        connection.execute(
            update(trials)
            .where(trials.c.id == trial_id, trials.c.state == TrialState.RUNNING)
            .values(state=TrialState.ERROR, error=event.error, ended_at=at)
        )
    return True


def refuse_registered(
    connection: Connection, what: str, *which: ColumnElement[bool], remedy: str
) -> None:
    """Raise CheckpointStateError if some checkpoints are in the model registry.

    Args:
        connection: The transaction that deletes files.
        what: Subject and verb of the message.
        which: Conditions on `checkpoints`.
        remedy: Last line of the message.
    """
    used = [name for names in list_registrations(connection, *which).values() for name in names]
    if used:
        listed = ", ".join(used[:_LISTED]) + (", ..." if len(used) > _LISTED else "")
        raise CheckpointStateError(
            f"{what} in the model registry: {listed}.\n"
            f"The model would lose its files. Nothing was deleted.\n{remedy}"
        )


def list_registrations(connection: Connection, *which: ColumnElement[bool]) -> dict[str, list[str]]:
    """Return the list_registrations, by UUID, of checkpoints of which conditions are true."""
    query = (
        select(model_versions.c.checkpoint_uuid, models.c.name, model_versions.c.number)
        .join(models, models.c.id == model_versions.c.model_id)
        .join(checkpoints, checkpoints.c.uuid == model_versions.c.checkpoint_uuid)
        .where(*which)
        .order_by(models.c.id, model_versions.c.number)
    )
    versions: dict[str, list[str]] = {}
    for row in connection.execute(query):
        versions.setdefault(row.checkpoint_uuid, []).append(f"{row.name} version {row.number}")
    return versions
