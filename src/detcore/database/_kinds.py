"""Kinds of spool records that change more than the table of events.

A worker that reports over HTTP writes what it does to its trial's checkpoints, and to its state,
into its spool: an outage then costs nothing, and the order is kept. Whoever takes the spool in
applies it here. Such a record may be late by days, and may come from a worker that is not to be
trusted, so it changes only what belongs to its own trial, and never takes back what was decided
meanwhile: of a checkpoint that was deleted, damaged or settled by others, the later state stays.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from sqlalchemy import Connection, Row, func, select, update

from detcore._log import encode_document
from detcore.database._models import registrations
from detcore.database._schema import checkpoints, runs, trials
from detcore.types import TrialState

__all__ = ["APPLIED", "Apply", "ChangeKind"]

# Given the transaction that takes the record in, its trial and run, and its payload, which may be
# any JSON value. Returns whether it was applied; one that was not is kept as an event. It must not
# raise because of a payload, which would hold up its spool for ever.
Apply: TypeAlias = Callable[[Connection, tuple[int, int], Any], bool]


class ChangeKind(str, enum.Enum):
    """The kinds of these records."""

    CHECKPOINT_STARTED = "checkpoint_started"
    CHECKPOINT_COMMITTED = "checkpoint_committed"
    CHECKPOINT_DELETING = "checkpoint_deleting"
    CHECKPOINT_DELETED = "checkpoint_deleted"
    CHECKPOINT_DAMAGED = "checkpoint_damaged"
    TRIAL_STATE = "trial_state"


_ACTIVE, _COMPLETED, _DAMAGED = "ACTIVE", "COMPLETED", "DAMAGED"
_PARTIALLY_DELETED, _DELETING, _DELETED = "PARTIALLY_DELETED", "DELETING", "DELETED"

_UUID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_MAX_URL = 4096


def _started(connection: Connection, owner: tuple[int, int], payload: Any) -> bool:
    uuid, steps, at = _uuid(payload), _count(payload, "steps_completed"), _time(payload)
    url = _text(payload, "storage_url", _MAX_URL)
    if uuid is None or steps is None or at is None or url is None:
        return False
    found = connection.execute(select(checkpoints).where(checkpoints.c.uuid == uuid)).fetchone()
    if found is not None:
        return bool(found.trial_id == owner[0])
    experiment_id = connection.execute(
        select(trials.c.experiment_id).where(trials.c.id == owner[0])
    ).scalar()
    if experiment_id is None:
        return False
    connection.execute(
        checkpoints.insert().values(
            uuid=uuid,
            trial_id=owner[0],
            experiment_id=experiment_id,
            storage_url=url,
            state=_ACTIVE,
            steps_completed=steps,
            metadata="{}",
            resources="{}",
            started_at=at,
        )
    )
    return True


def _committed(connection: Connection, owner: tuple[int, int], payload: Any) -> bool:
    steps, at = _count(payload, "steps_completed"), _time(payload)
    resources = _resources(payload)
    metadata = _document(payload.get("metadata")) if isinstance(payload, dict) else None
    found = _mine(connection, owner, payload)
    if found is None or steps is None or at is None or resources is None or metadata is None:
        return False
    if found.state == _ACTIVE:
        _change(
            connection,
            found,
            state=_COMPLETED,
            metadata=metadata,
            resources=resources,
            steps_completed=steps,
            committed_at=at,
        )
    return True


def _deleting(connection: Connection, owner: tuple[int, int], payload: Any) -> bool:
    at, found = _time(payload), _mine(connection, owner, payload)
    if found is None or at is None or _is_registered(connection, found):
        return False
    if found.state not in (_DELETING, _DELETED):
        _change(connection, found, state=_DELETING, resources="{}", deleted_at=at)
    return True


def _deleted(connection: Connection, owner: tuple[int, int], payload: Any) -> bool:
    at, found, resources = _time(payload), _mine(connection, owner, payload), _resources(payload)
    if found is None or at is None or resources is None or _is_registered(connection, found):
        return False
    is_part = resources != "{}"
    if found.state == _DELETED or (is_part and found.state in (_ACTIVE, _DELETING)):
        return True
    state = _PARTIALLY_DELETED if is_part else _DELETED
    _change(connection, found, state=state, resources=resources, deleted_at=at)
    return True


def _damaged(connection: Connection, owner: tuple[int, int], payload: Any) -> bool:
    found = _mine(connection, owner, payload)
    if found is None:
        return False
    if found.state not in (_DELETING, _DELETED):
        _change(connection, found, state=_DAMAGED)
    return True


def _trial_state(connection: Connection, owner: tuple[int, int], payload: Any) -> bool:
    """Record that a trial failed, while it is recorded as running and no later run has begun."""
    at, error = _time(payload), _text(payload, "error", None)
    if at is None or error is None or payload.get("state") != TrialState.ERROR.value:
        return False
    trial_id, run_id = owner
    newest = connection.execute(
        select(func.max(runs.c.run_id)).where(runs.c.trial_id == trial_id)
    ).scalar()
    if newest is None or newest <= run_id:
        connection.execute(
            update(trials)
            .where(trials.c.id == trial_id, trials.c.state == TrialState.RUNNING.value)
            .values(state=TrialState.ERROR.value, error=error, ended_at=at)
        )
    return True


APPLIED: Mapping[str, Apply] = {
    ChangeKind.CHECKPOINT_STARTED.value: _started,
    ChangeKind.CHECKPOINT_COMMITTED.value: _committed,
    ChangeKind.CHECKPOINT_DELETING.value: _deleting,
    ChangeKind.CHECKPOINT_DELETED.value: _deleted,
    ChangeKind.CHECKPOINT_DAMAGED.value: _damaged,
    ChangeKind.TRIAL_STATE.value: _trial_state,
}


def _mine(connection: Connection, owner: tuple[int, int], payload: Any) -> Row[Any] | None:
    """Return the checkpoint that a record is about, if it is one of the same trial."""
    uuid = _uuid(payload)
    if uuid is None:
        return None
    query = select(checkpoints).where(
        checkpoints.c.uuid == uuid, checkpoints.c.trial_id == owner[0]
    )
    return connection.execute(query.with_for_update()).fetchone()


def _is_registered(connection: Connection, found: Row[Any]) -> bool:
    return bool(registrations(connection, found.uuid))


def _change(connection: Connection, found: Row[Any], **changed: object) -> None:
    connection.execute(
        update(checkpoints).where(checkpoints.c.uuid == found.uuid).values(**changed)
    )


def _uuid(payload: Any) -> str | None:
    uuid = _text(payload, "uuid", None)
    return uuid if uuid is not None and _UUID.fullmatch(uuid) else None


def _text(payload: Any, name: str, most: int | None) -> str | None:
    value = payload.get(name) if isinstance(payload, dict) else None
    if not isinstance(value, str) or (most is not None and len(value) > most):
        return None
    return value


def _count(payload: Any, name: str) -> int | None:
    value = payload.get(name) if isinstance(payload, dict) else None
    return value if _is_count(value) else None


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63


def _time(payload: Any) -> float | None:
    """Return when a worker did it, in seconds since 1970."""
    value = payload.get("at") if isinstance(payload, dict) else None
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    # What every calendar has; a record with another time could not be read again. NaN is none.
    return float(value) if 0 <= value < 2**35 else None


def _resources(payload: Any) -> str | None:
    value = payload.get("resources") if isinstance(payload, dict) else None
    if not isinstance(value, dict) or not all(map(_is_count, value.values())):
        return None
    return _document(value)


def _document(value: object) -> str | None:
    """Return a JSON object as it is kept; None if it is none."""
    if not isinstance(value, dict):
        return None
    try:
        return encode_document(value)
    except (RecursionError, ValueError):  # nested deeper than anything real
        return None
