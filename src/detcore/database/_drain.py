"""Parse the lines of spools, and move them into the database, each once."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, bindparam, insert, select, update
from sqlalchemy.exc import IntegrityError

from detcore._log import Line, encode_metrics, parse_line, read_spool
from detcore._log.events import Event, TrainingMetrics, ValidationMetrics, decode
from detcore._records import MetricRecord
from detcore.contract.errors import DatabaseError, DetcoreError, NotFoundError
from detcore.database._apply import APPLIED, apply_event
from detcore.database._metrics import insert_metrics, metric_row
from detcore.database._queries import Queries, among, now
from detcore.database._schema import events, runs, spools
from detcore.database._text import MAX_INDEXED

if TYPE_CHECKING:
    from detcore.database._database import Database

__all__ = ["Position", "SpoolLines", "SpoolQueries", "drain", "read_positions"]

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
    known = _positions(connection, sorted({part.owner[0] for part in parts}), lock=True)
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


def _positions(
    connection: Connection, trial_ids: Sequence[int] | None, *, lock: bool = False
) -> dict[Owner, Position]:
    query = select(spools).with_for_update() if lock else select(spools)
    return {
        (row.trial_id, row.run_id): Position(row.byte_offset, row.last_seq)
        for condition in among(spools.c.trial_id, trial_ids)
        for row in connection.execute(query.where(condition))
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


class SpoolQueries(Queries):
    """Methods of `Database` for spools whose lines arrive from elsewhere."""

    def spool_position(self, trial_id: int, run_id: int) -> Position:
        """Return how far the spool of a run was taken in.

        Raises:
            NotFoundError: If the run was never started.
        """
        of_run = (runs.c.trial_id == trial_id, runs.c.run_id == run_id)
        of_spool = (spools.c.trial_id == trial_id, spools.c.run_id == run_id)
        with self._read() as connection:
            row = connection.execute(select(spools).where(*of_spool)).first()
            if row is not None:
                return Position(row.byte_offset, row.last_seq)
            if connection.execute(select(runs.c.run_id).where(*of_run)).first() is None:
                raise _unknown_run((trial_id, run_id))
        return Position()

    def add_spool_lines(self, given: Sequence[SpoolLines]) -> list[Position | Exception]:
        """Add the records of whole lines, those of all spools in one transaction.

        Lines that begin elsewhere than at their spool's position add nothing. If the database
        refuses any lines, each spool's are added in a separate transaction, so that only the
        refused ones fail.

        Args:
            given: In this order, also those of one spool.

        Returns:
            For each element the position of its spool now; or a NotFoundError if its run was never
            started, a DatabaseError if its records contradict those in the database, or any other
            error that these lines cause.
        """
        return self._add([parse_part(lines) for lines in given])

    def _add(self, parts: Sequence[Part]) -> list[Position | Exception]:
        try:
            with self._write() as connection:
                found = add_parts(connection, parts, of_known_runs=True)
        except DetcoreError:
            raise  # the database is unreachable or full, for all parts
        except Exception as error:  # noqa: BLE001  (returned to the sender of the lines)
            if len(parts) > 1:
                return [answer for part in parts for answer in self._add([part])]
            [part] = parts
            return [_refused(part, error) if isinstance(error, IntegrityError) else error]
        return [
            _unknown_run(part.owner) if position is None else position
            for part, position in zip(parts, found, strict=True)
        ]


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
        if found.header is None or not found.lines:
            return dataclasses.replace(position, added=added)
        lines = SpoolLines(
            owner=(found.header.trial_id, found.header.run_id),
            first=found.header.records_at,
            start=found.start,
            data=found.lines,
        )
        position = _store(database, parse_part(lines))
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
    assert position is not None  # only parts of unknown runs are refused, on request
    return position


def _unknown_run(owner: Owner) -> NotFoundError:
    return NotFoundError(
        f"trial {owner[0]} has no run {owner[1]}, or there is no such trial.\n"
        "Reports belong to a run that was started here; it may have been deleted."
    )


def _refused(part: Part, error: IntegrityError) -> DatabaseError:
    return DatabaseError(
        f"cannot take in reports of trial {part.owner[0]}, run {part.owner[1]}, from byte "
        f"{part.start} on: {error.orig}.\nThey are there already, or contradict what is."
    )
