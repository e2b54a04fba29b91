"""Move the lines of logs into the database, each once."""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, insert, select, update
from sqlalchemy.exc import IntegrityError

from detcore.contract.errors import DatabaseError
from detcore.log.events import Event, TrainingReport, ValidationReport
from detcore.log.lines import EventLine, encode_metrics, parse_line
from detcore.log.reading import EventLogPart, read_event_log
from detcore.records.column_types import MAX_INDEXED, EncodedJson
from detcore.records.event_application import APPLIED, apply_event
from detcore.records.metric_queries import insert_metrics, metric_row
from detcore.records.queries import among, now
from detcore.records.schema import event_logs, events

if TYPE_CHECKING:
    from detcore.records.database import Database

# Trial and run.
Owner = tuple[int, int]
_SHOWN = 200


@dataclasses.dataclass(frozen=True, slots=True)
class LogPosition:
    """How far a log was ingested.

    Attributes:
        offset: Byte of the file up to which it is in the database.
        last_seq: Sequence number of the last record there.
        added: Records that the call which returned this has added.
    """

    offset: int = 0
    last_seq: int = 0
    added: int = 0


@dataclasses.dataclass(frozen=True, slots=True)
class _IngestedLine:
    """A line, as the row that it becomes.

    Attributes:
        seq: Its number; None: damaged.
        row: A row of `metrics`, as `metric_row` returns it, or of `events`.
        change: An event that changes other records; its row is added only if they refuse it.
    """

    seq: int | None
    row: dict[str, Any]
    change: Event | None = None


def _parse(owner: Owner, part: EventLogPart) -> list[_IngestedLine]:
    """Return the lines of a part as rows; this costs most of the time.

    Damaged lines become events of kind "damaged".
    """
    entries = []
    end = part.start
    for text in part.lines.split(b"\n")[:-1]:
        line = parse_line(text)
        entry = None if line is None else _entry(owner, line)
        entries.append(entry or _damaged(owner, end, text))
        end += len(text) + 1
    return entries


def _add_entries(
    connection: Connection, owner: Owner, part: EventLogPart, entries: Sequence[_IngestedLine]
) -> LogPosition:
    """Add the entries of a part that starts at its log's position, and move the position.

    Returns:
        The position. A part that starts elsewhere adds nothing.

    Raises:
        IntegrityError: If the trial does not exist, or the records are there already.
    """
    assert part.header is not None
    here = (event_logs.c.trial_id == owner[0], event_logs.c.run_id == owner[1])
    known = connection.execute(select(event_logs).where(*here).with_for_update()).fetchone()
    offset, last_seq = (known.byte_offset, known.last_seq) if known else (part.header.lines_at, 0)
    if not part.start == offset < part.end:
        return LogPosition(offset, last_seq)
    added = 0
    reports: list[dict[str, Any]] = []
    others: list[dict[str, Any]] = []
    for entry in entries:
        if entry.seq is not None:
            if entry.seq <= last_seq:
                continue
            last_seq = entry.seq
        added += 1
        if "values" in entry.row:
            reports.append(entry.row)
        elif entry.change is None or not apply_event(
            connection, owner, entry.change, entry.row["reported_at"]
        ):
            others.append(entry.row)
    insert_metrics(connection, reports)
    if others:
        connection.execute(insert(events), others)
    place = {"byte_offset": part.end, "last_seq": last_seq}
    if known:
        connection.execute(update(event_logs).where(*here).values(place))
    else:
        connection.execute(insert(event_logs).values(trial_id=owner[0], run_id=owner[1], **place))
    return LogPosition(part.end, last_seq, added)


def _entry(owner: Owner, line: EventLine) -> _IngestedLine | None:
    """Return a record as its row; None if it cannot be one."""
    trial_id, run_id = owner
    event = line.event
    moment = datetime.datetime.fromtimestamp(line.time, datetime.timezone.utc)
    try:
        if isinstance(event, TrainingReport | ValidationReport):
            row = metric_row(
                event,
                trial_id=trial_id,
                run_id=run_id,
                seq=line.seq,
                kind=line.kind,
                reported_at=moment,
            )
            return _IngestedLine(line.seq, row)
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
    return _IngestedLine(line.seq, row, event if line.kind in APPLIED else None)


def _damaged(owner: Owner, offset: int, text: bytes) -> _IngestedLine:
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
    return _IngestedLine(None, row)


def ingest_log(database: Database, path: Path, start: LogPosition) -> LogPosition:
    """Add the finished lines of a log that are not in the database.

    Each chunk's rows and the position behind it are one transaction, so that a process may be
    killed anywhere, and any number may do this concurrently.

    Args:
        database: Where to.
        path: The log.
        start: The position as far as the caller knows it; a wrong one costs time only.

    Raises:
        EventLogDamagedError: If the file is not a log, or shorter than it was.
        DatabaseError: If its trial is not in this database, or that cannot be used.
    """
    added, position = 0, start
    while True:
        part = read_event_log(path, position.offset)
        if not part.lines:
            return dataclasses.replace(position, added=added)
        position = _store(database, part)
        added += position.added


def read_positions(
    database: Database, trial_ids: Sequence[int] | None = None
) -> dict[Owner, LogPosition]:
    """Return the positions of all logs, or of those of some trials, by trial and run."""
    with database._read() as connection:
        return {
            (row.trial_id, row.run_id): LogPosition(row.byte_offset, row.last_seq)
            for condition in among(event_logs.c.trial_id, trial_ids)
            for row in connection.execute(select(event_logs).where(condition))
        }


def _store(database: Database, part: EventLogPart) -> LogPosition:
    """Add a part, unless another process has moved its log's position; return the position."""
    assert part.header is not None  # a part without one has no lines
    owner = (part.header.trial_id, part.header.run_id)
    entries = _parse(owner, part)
    try:
        with database._write() as connection:
            return _add_entries(connection, owner, part, entries)
    except IntegrityError as error:
        # On a server two may begin a log at once; the second continues from the first's end.
        known = read_positions(database, [owner[0]]).get(owner)
        if known is not None and known.offset > part.start:
            return known
        raise DatabaseError(
            f"cannot take in reports of trial {owner[0]}, run {owner[1]}: {error.orig}.\n"
            f"There is no such trial in {database.url}, or the reports are there already."
        ) from error
