"""Apply the events of a trial's log to the records: the one place where they become state.

Events may be late by days, and may come from a worker that is not to be trusted. An event changes
only what belongs to its own trial, and never takes back a later decision: a checkpoint that was
deleted, damaged or settled meanwhile keeps that state. Commands that change a checkpoint by hand
go through the same transitions.
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
# Seconds since 1970 that every calendar has; a record with another time could not be read again.
_MAX_TIME = 2.0**35
# Kinds of events that change more than the table of events.
APPLIED = frozenset(event.KIND for event in (*get_args(events.CheckpointEvent), events.TrialFailed))


def apply_event(
    connection: Connection, owner: tuple[int, int], event: events.Event, at: datetime
) -> bool:
    """Apply an event to the records.

    Args:
        connection: The transaction that takes the event in.
        owner: The trial and run whose log it is in.
        event: The event.
        at: When it happened.

    Returns:
        Whether the records took it. Those that they refuse are kept as events: an event must
        never hold up its log.
    """
    if not 0 <= at.timestamp() < _MAX_TIME:
        return False
    if isinstance(event, events.CheckpointStarted):
        return _start(connection, owner, event, at)
    if isinstance(event, events.TrialFailed):
        return _fail(connection, owner, event, at)
    if not isinstance(event, CheckpointChange):
        return False
    found = connection.execute(
        select(checkpoints)
        .where(checkpoints.c.uuid == event.uuid, checkpoints.c.trial_id == owner[0])
        .with_for_update()
    ).fetchone()
    if found is None:
        return False
    deletes = isinstance(event, events.CheckpointDeleting | events.CheckpointDeleted)
    if deletes and registrations(connection, checkpoints.c.uuid == event.uuid):
        return False
    try:
        change_checkpoint(connection, found, event, at)
    except (RecursionError, ValueError):  # metadata nested deeper than any real one
        return False
    return True


def change_checkpoint(
    connection: Connection,
    found: Row[Any],
    event: CheckpointChange,
    at: datetime,
    *,
    is_late: bool = True,
) -> None:
    """Move a checkpoint to the state that an event leads to, where its state allows that.

    Args:
        connection: A transaction that writes.
        found: The checkpoint's row.
        event: The change that was reported.
        at: Time of the change.
        is_late: Whether others may have decided about the checkpoint since; False for a process
            that has just seen its files.
    """
    allowed, state, columns = _transition(event, at, is_late=is_late)
    if found.committed_at is not None:  # users may have added to its metadata
        columns.pop("metadata", None)
    if found.state in allowed:
        connection.execute(
            update(checkpoints)
            .where(checkpoints.c.uuid == found.uuid)
            .values(state=state, **columns)
        )


def _transition(
    event: CheckpointChange, at: datetime, *, is_late: bool
) -> tuple[frozenset[str], str, dict[str, object]]:
    """Return from which states an event leads on, to which state, and what changes with it."""
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
    left: dict[str, object] = {"resources": event.resources, "deleted_at": at}
    if event.resources:
        return _ALL - _GONE - {ACTIVE}, PARTIALLY_DELETED, left
    return _ALL - {DELETED}, DELETED, left


def insert_checkpoint(
    connection: Connection, event: events.CheckpointStarted, at: datetime, *, trial_id: int | None
) -> None:
    """Insert a checkpoint that is being written.

    Raises:
        IntegrityError: If it is recorded already, or there is no such trial.
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


def _start(
    connection: Connection, owner: tuple[int, int], event: events.CheckpointStarted, at: datetime
) -> bool:
    found = connection.execute(
        select(checkpoints.c.trial_id).where(checkpoints.c.uuid == event.uuid)
    ).scalar()
    if found is None:
        insert_checkpoint(connection, event, at, trial_id=owner[0])
    return found in (None, owner[0])


def _fail(
    connection: Connection, owner: tuple[int, int], event: events.TrialFailed, at: datetime
) -> bool:
    """Record that a trial failed, while it is recorded as running and no later run has begun."""
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
    """Raise CheckpointStateError if some of the checkpoints are in the model registry.

    Args:
        connection: The transaction that is about to delete files.
        what: Subject and verb of the message.
        which: Conditions on `checkpoints`.
        remedy: Last line of the message.
    """
    used = [name for names in registrations(connection, *which).values() for name in names]
    if used:
        listed = ", ".join(used[:_LISTED]) + (", ..." if len(used) > _LISTED else "")
        raise CheckpointStateError(
            f"{what} in the model registry: {listed}.\n"
            f"A model would lose its files. Nothing was deleted.\n{remedy}"
        )


def registrations(connection: Connection, *which: ColumnElement[bool]) -> dict[str, list[str]]:
    """Return the registrations, by UUID, of checkpoints of which conditions are true."""
    query = (
        select(model_versions.c.checkpoint_uuid, models.c.name, model_versions.c.number)
        .join(models, models.c.id == model_versions.c.model_id)
        .join(checkpoints, checkpoints.c.uuid == model_versions.c.checkpoint_uuid)
        .where(*which)
        .order_by(models.c.id, model_versions.c.number)
    )
    found: dict[str, list[str]] = {}
    for row in connection.execute(query):
        found.setdefault(row.checkpoint_uuid, []).append(f"{row.name} version {row.number}")
    return found
