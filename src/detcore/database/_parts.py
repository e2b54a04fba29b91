"""Parts of a spool: whole lines from a byte on, and how they get into the database, once."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, bindparam, insert, select, update

from detcore._log import Line, encode_metrics, parse_line
from detcore._log.events import Event, TrainingMetrics, ValidationMetrics, decode
from detcore._records import MetricRecord
from detcore.database._apply import APPLIED, apply_event
from detcore.database._metrics import insert_metrics, metric_row
from detcore.database._queries import among, now
from detcore.database._schema import events, runs, spools
from detcore.database._text import MAX_INDEXED

__all__ = ["Owner", "Part", "Position", "SpoolLines", "add_parts", "parse_part"]

# Trial and run.
Owner = tuple[int, int]
_SHOWN = 200


@dataclasses.dataclass(frozen=True, slots=True)
class Position:
    """How far a spool was taken in.

    Attributes:
        offset: Byte of the file up to which it is in the database.
        last_seq: Sequence number of the last record there.
        added: Records that the call which returned this has added.
    """

    offset: int = 0
    last_seq: int = 0
    added: int = 0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SpoolLines:
    """Whole lines of a spool.

    Attributes:
        owner: Trial and run.
        first: Byte of the spool where its records begin.
        start: Byte where these lines begin.
        data: The lines.
    """

    owner: tuple[int, int]
    first: int
    start: int
    data: bytes


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Entry:
    """A line, as the row or the change that it becomes.

    Attributes:
        seq: Its number; None: damaged.
        metrics: A row of `metrics`, or None.
        event: A row of `events`, or None.
        change: An event that changes other records; a row of `events` only if they refuse it.
    """

    seq: int | None
    metrics: dict[str, Any] | None = None
    event: dict[str, Any] | None = None
    change: Event | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Whole lines of a spool, parsed.

    Attributes:
        owner: Whose spool it is.
        first: Byte of the spool where its records begin.
        start: Byte where this part begins.
        end: Byte behind it.
        entries: Its lines.
    """

    owner: Owner
    first: int
    start: int
    end: int
    entries: Sequence[_Entry]


def parse_part(lines: SpoolLines) -> Part:
    """Return whole lines, parsed into database rows; this costs most of the time.

    Damaged lines become events of kind "damaged".
    """
    entries = []
    owner, end = lines.owner, lines.start
    for text in lines.data.split(b"\n")[:-1]:
        line = parse_line(text)
        entry = None if line is None else _entry(owner, line)
        entries.append(entry or _damaged(owner, end, text))
        end += len(text) + 1
    return Part(owner=owner, first=lines.first, start=lines.start, end=end, entries=entries)


def add_parts(
    connection: Connection, parts: Sequence[Part], *, of_known_runs: bool = False
) -> list[Position | None]:
    """Add the records of parts that begin where their spool's position is, and move that.

    Args:
        connection: A transaction that writes.
        parts: In this order, also those of one spool.
        of_known_runs: Whether to refuse parts of runs that were never started.

    Returns:
        For each part where its spool's position is now. A part that begins elsewhere adds
        nothing. None: refused.

    Raises:
        IntegrityError: If a trial does not exist, or records are there already.
    """
    known = _positions(connection, {part.owner for part in parts})
    started = set(known)
    if of_known_runs:
        started |= _known_runs(connection, {part.owner for part in parts} - started)
    rows = _Rows()
    moved: dict[Owner, Position] = {}
    found: list[Position | None] = []
    for part in parts:
        position = moved.get(part.owner) or known.get(part.owner) or Position(part.first)
        if of_known_runs and part.owner not in started:
            found.append(None)
            continue
        if part.start == position.offset and part.end > part.start:
            position = rows.add(connection, part, position.last_seq)
            moved[part.owner] = position
        else:
            position = Position(position.offset, position.last_seq)
        found.append(position)
    rows.insert(connection)
    _move(connection, moved, known)
    return found


class _Rows:
    """Rows to be inserted by few statements."""

    def __init__(self) -> None:
        self._metrics: list[dict[str, Any]] = []
        self._events: list[dict[str, Any]] = []

    def add(self, connection: Connection, part: Part, last_seq: int) -> Position:
        """Take the records of a part that are new; return the position behind it."""
        added = 0
        for entry in part.entries:
            if entry.seq is not None:
                if entry.seq <= last_seq:
                    continue
                last_seq = entry.seq
            added += 1
            if entry.metrics is not None:
                self._metrics.append(entry.metrics)
            elif entry.event is not None and not _is_applied(connection, part.owner, entry):
                self._events.append(entry.event)
        return Position(part.end, last_seq, added)

    def insert(self, connection: Connection) -> None:
        """Insert them."""
        insert_metrics(connection, self._metrics)
        if self._events:
            connection.execute(insert(events), self._events)


def _is_applied(connection: Connection, owner: Owner, entry: _Entry) -> bool:
    """Apply an event that changes more than events; return whether it was one, and applied."""
    if entry.change is None or entry.event is None:
        return False
    return apply_event(connection, owner, entry.change, entry.event["reported_at"])


def _positions(connection: Connection, owners: set[Owner]) -> dict[Owner, Position]:
    trial_ids = sorted({owner[0] for owner in owners})
    return {
        (row.trial_id, row.run_id): Position(row.byte_offset, row.last_seq)
        for condition in among(spools.c.trial_id, trial_ids)
        for row in connection.execute(select(spools).where(condition).with_for_update())
    }


def _known_runs(connection: Connection, owners: set[Owner]) -> set[Owner]:
    trial_ids = sorted({owner[0] for owner in owners})
    return {
        (row.trial_id, row.run_id)
        for condition in (among(runs.c.trial_id, trial_ids) if trial_ids else ())
        for row in connection.execute(select(runs.c.trial_id, runs.c.run_id).where(condition))
    }


def _move(
    connection: Connection, moved: dict[Owner, Position], known: dict[Owner, Position]
) -> None:
    old = [_place(owner, position) for owner, position in moved.items() if owner in known]
    new = [_place(owner, position) for owner, position in moved.items() if owner not in known]
    if old:
        here = (spools.c.trial_id == bindparam("trial"), spools.c.run_id == bindparam("run"))
        to: dict[str, Any] = {"byte_offset": bindparam("offset"), "last_seq": bindparam("seq")}
        connection.execute(update(spools).where(*here).values(to), old)
    if new:
        row: dict[str, Any] = {
            "trial_id": bindparam("trial"),
            "run_id": bindparam("run"),
            "byte_offset": bindparam("offset"),
            "last_seq": bindparam("seq"),
        }
        connection.execute(insert(spools).values(row), new)


def _place(owner: Owner, position: Position) -> dict[str, int]:
    return {
        "trial": owner[0],
        "run": owner[1],
        "offset": position.offset,
        "seq": position.last_seq,
    }


def _entry(owner: Owner, line: Line) -> _Entry | None:
    """Return a record as its row; None if it cannot be one."""
    trial_id, run_id = owner
    event = decode(line.kind, line.payload)
    try:
        if isinstance(event, TrainingMetrics | ValidationMetrics):
            record = MetricRecord(
                trial_id=trial_id,
                run_id=run_id,
                seq=line.seq,
                kind=line.kind,
                steps_completed=event.steps_completed,
                metrics=event.metrics,
                batch_metrics=event.batch_metrics,
                n_records=event.n_records,
                reported_at=line.reported_at,
            )
            return _Entry(seq=line.seq, metrics=metric_row(record))
        row = {
            "trial_id": trial_id,
            "run_id": run_id,
            "seq": line.seq,
            "kind": line.kind[:MAX_INDEXED],
            "payload": encode_metrics(line.payload),
            "reported_at": line.reported_at.timestamp(),
        }
    except RecursionError:  # nested deeper than any report is
        return None
    return _Entry(seq=line.seq, event=row, change=event if line.kind in APPLIED else None)


def _damaged(owner: Owner, offset: int, text: bytes) -> _Entry:
    """Return the event for a line whose checksum is wrong (the machine crashed)."""
    shown = text[:_SHOWN].decode("ascii", "backslashreplace")
    row = {
        "trial_id": owner[0],
        "run_id": owner[1],
        "seq": None,
        "kind": "damaged",
        "payload": encode_metrics({"offset": offset, "bytes": len(text) + 1, "text": shown}),
        "reported_at": now(),
    }
    return _Entry(seq=None, event=row)
