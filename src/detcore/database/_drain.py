"""Parse the lines of spools, and move them into the database, each once."""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, bindparam, insert, select, update
from sqlalchemy.exc import IntegrityError

from detcore._log import SpooledRecord, SpoolPart, encode_metrics, parse_line, read_spool
from detcore._log.events import Event, TrainingMetrics, ValidationMetrics
from detcore.contract.errors import DatabaseError
from detcore.database._apply import APPLIED, apply_event
from detcore.database._column_types import MAX_INDEXED, EncodedJson
from detcore.database._metrics import insert_metrics, metric_row
from detcore.database._queries import among, now
from detcore.database._schema import events, spools

if TYPE_CHECKING:
    from detcore.database._database import Database

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


@dataclasses.dataclass(frozen=True, slots=True)
class _Entry:
    """A line, as the row that it becomes.

    Attributes:
        seq: Its number; None: damaged.
        row: A row of `metrics`, as `metric_row` returns it, or of `events`.
        change: An event that changes other records; its row is added only if they refuse it.
    """

    seq: int | None
    row: dict[str, Any]
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


def parse_part(lines: SpoolPart) -> Part:
    """Return whole lines, parsed into database rows; this costs most of the time.

    Damaged lines become events of kind "damaged".
    """
    entries = []
    assert lines.header is not None  # a part without one has no lines
    owner, end = (lines.header.trial_id, lines.header.run_id), lines.start
    for text in lines.lines.split(b"\n")[:-1]:
        line = parse_line(text)
        entry = None if line is None else _entry(owner, line)
        entries.append(entry or _damaged(owner, end, text))
        end += len(text) + 1
    first = lines.header.records_at
    return Part(owner=owner, first=first, start=lines.start, end=end, entries=entries)


def add_parts(connection: Connection, parts: Sequence[Part]) -> list[Position]:
    """Add the records of parts that begin where their spool's position is, and move that.

    Args:
        connection: A transaction that writes.
        parts: In this order, also those of one spool.

    Returns:
        For each part where its spool's position is now. A part that begins elsewhere adds nothing.

    Raises:
        IntegrityError: If a trial does not exist, or records are there already.
    """
    known = _positions(connection, sorted({part.owner[0] for part in parts}), lock=True)
    moved: dict[Owner, Position] = {}
    found: list[Position] = []
    reports: list[dict[str, Any]] = []
    others: list[dict[str, Any]] = []
    for part in parts:
        before = moved.get(part.owner) or known.get(part.owner) or Position(part.first)
        last_seq, added = before.last_seq, 0
        if not part.start == before.offset < part.end:
            found.append(Position(before.offset, last_seq))
            continue
        for entry in part.entries:
            if entry.seq is not None:
                if entry.seq <= last_seq:
                    continue
                last_seq = entry.seq
            added += 1
            if "values" in entry.row:
                reports.append(entry.row)
            elif entry.change is None or not apply_event(
                connection, part.owner, entry.change, entry.row["reported_at"]
            ):
                others.append(entry.row)
        moved[part.owner] = Position(part.end, last_seq, added)
        found.append(moved[part.owner])
    insert_metrics(connection, reports)
    if others:
        connection.execute(insert(events), others)
    _move(connection, moved, known)
    return found


def _positions(
    connection: Connection, trial_ids: Sequence[int] | None, *, lock: bool = False
) -> dict[Owner, Position]:
    query = select(spools).with_for_update() if lock else select(spools)
    return {
        (row.trial_id, row.run_id): Position(row.byte_offset, row.last_seq)
        for condition in among(spools.c.trial_id, trial_ids)
        for row in connection.execute(query.where(condition))
    }


def _move(
    connection: Connection, moved: dict[Owner, Position], known: dict[Owner, Position]
) -> None:
    key: dict[str, Any] = {"trial_id": bindparam("trial"), "run_id": bindparam("run")}
    place: dict[str, Any] = {"byte_offset": bindparam("offset"), "last_seq": bindparam("seq")}
    here = [spools.c[name] == value for name, value in key.items()]
    moves = update(spools).where(*here).values(place)
    for statement, is_known in ((moves, True), (insert(spools).values(key | place), False)):
        rows = [
            {"trial": trial, "run": run, "offset": position.offset, "seq": position.last_seq}
            for (trial, run), position in moved.items()
            if ((trial, run) in known) is is_known
        ]
        if rows:
            connection.execute(statement, rows)


def _entry(owner: Owner, line: SpooledRecord) -> _Entry | None:
    """Return a record as its row; None if it cannot be one."""
    trial_id, run_id = owner
    event = line.event
    moment = datetime.datetime.fromtimestamp(line.time, datetime.timezone.utc)
    try:
        if isinstance(event, TrainingMetrics | ValidationMetrics):
            row = metric_row(
                event,
                trial_id=trial_id,
                run_id=run_id,
                seq=line.seq,
                kind=line.kind,
                reported_at=moment,
            )
            return _Entry(line.seq, row)
        row = {
            "trial_id": trial_id,
            "run_id": run_id,
            "seq": line.seq,
            "kind": line.kind[:MAX_INDEXED],
            "payload": EncodedJson(encode_metrics(line.payload)),
            "reported_at": moment,
        }
    except RecursionError:  # nested deeper than any report is
        return None
    return _Entry(line.seq, row, event if line.kind in APPLIED else None)


def _damaged(owner: Owner, offset: int, text: bytes) -> _Entry:
    """Return the event for a line whose checksum is wrong (the machine crashed)."""
    shown = text[:_SHOWN].decode("ascii", "backslashreplace")
    row = {
        "trial_id": owner[0],
        "run_id": owner[1],
        "seq": None,
        "kind": "damaged",
        "payload": {"offset": offset, "bytes": len(text) + 1, "text": shown},
        "reported_at": now(),
    }
    return _Entry(None, row)


def drain(database: Database, path: Path, start: Position) -> Position:
    """Add the finished lines of a spool that are not in the database.

    Each chunk's rows and the position behind it are one transaction, so that a process may be
    killed anywhere, and any number may do this at once.

    Args:
        database: Where to.
        path: The spool.
        start: The position as far as the caller knows it; a wrong one costs time only.

    Raises:
        SpoolDamagedError: If the file is not a spool, or shorter than it was.
        DatabaseError: If its trial is not in this database, or that cannot be used.
    """
    added, position = 0, start
    while True:
        found = read_spool(path, position.offset)
        if not found.lines:
            return dataclasses.replace(position, added=added)
        position = _store(database, parse_part(found))
        added += position.added


def read_positions(
    database: Database, trial_ids: Sequence[int] | None = None
) -> dict[tuple[int, int], Position]:
    """Return the positions of all spools, or of those of some trials, by trial and run."""
    with database._read() as connection:
        return _positions(connection, trial_ids)


def _store(database: Database, part: Part) -> Position:
    """Add a part, unless another process has moved its spool's position; return the position."""
    try:
        with database._write() as connection:
            [position] = add_parts(connection, [part])
    except IntegrityError as error:
        # On a server two may begin a spool at once; the second continues from the first's end.
        known = read_positions(database).get(part.owner, Position(part.first))
        if known.offset > part.start:
            return known
        raise DatabaseError(
            f"cannot take in reports of trial {part.owner[0]}, run {part.owner[1]}: {error.orig}.\n"
            f"There is no such trial in {database.url}, or the reports are there already."
        ) from error
    return position
