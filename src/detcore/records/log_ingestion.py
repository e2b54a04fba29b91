"""Ingest the lines of event logs into the database, each line once."""

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
from detcore.records.metric_queries import insert_metrics, make_metric_row
from detcore.records.queries import make_in_conditions, now
from detcore.records.schema import event_logs, events

if TYPE_CHECKING:
    from detcore.records.database import Database

Owner = tuple[int, int]  # trial and run
_MAX_EXCERPT = 200


@dataclasses.dataclass(frozen=True, slots=True)
class LogPosition:
    """Position up to which a log was ingested.

    Attributes:
        offset: Number of ingested bytes.
        last_seq: Sequence number of the last ingested record.
        added: Number of records that the returning call added.
    """

    offset: int = 0
    last_seq: int = 0
    added: int = 0


@dataclasses.dataclass(frozen=True, slots=True)
class _IngestedLine:
    """A line of a log and its row.

    Attributes:
        seq: Sequence number, or None for a damaged line.
        row: A row of `metrics`, as `make_metric_row` returns it, or of `events`.
        change: An event that changes other records. Its row is added only if it is rejected.
    """

    seq: int | None
    row: dict[str, Any]
    change: Event | None = None


def _parse_part(owner: Owner, part: EventLogPart) -> list[_IngestedLine]:
    """Return the lines of a part as rows. Most of the ingestion time is spent here.

    Damaged lines become events of kind "damaged".
    """
    entries = []
    end = part.start
    for text in part.lines.split(b"\n")[:-1]:
        line = parse_line(text)
        entry = None if line is None else _make_row(owner, line)
        entries.append(entry or _make_damaged_row(owner, end, text))
        end += len(text) + 1
    return entries


def _add_entries(
    connection: Connection, owner: Owner, part: EventLogPart, entries: Sequence[_IngestedLine]
) -> LogPosition:
    """Add the entries of a part that starts at its log's position, and advance the position.

    Returns:
        The position. A part that starts elsewhere adds nothing.

    Raises:
        IntegrityError: If the trial does not exist, or the records were already added.
    """
    assert part.header is not None
    here = (event_logs.c.trial_id == owner[0], event_logs.c.run_id == owner[1])
    log = connection.execute(select(event_logs).where(*here).with_for_update()).fetchone()
    offset, last_seq = (log.byte_offset, log.last_seq) if log else (part.header.lines_at, 0)
    if not part.start == offset < part.end:
        return LogPosition(offset, last_seq)
    added = 0
    reports: list[dict[str, Any]] = []
    event_rows: list[dict[str, Any]] = []
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
            event_rows.append(entry.row)
    insert_metrics(connection, reports)
    if event_rows:
        connection.execute(insert(events), event_rows)
    position = {"byte_offset": part.end, "last_seq": last_seq}
    if log:
        connection.execute(update(event_logs).where(*here).values(position))
    else:
        key = {"trial_id": owner[0], "run_id": owner[1]}
        connection.execute(insert(event_logs).values(**key, **position))
    return LogPosition(part.end, last_seq, added)


def _make_row(owner: Owner, line: EventLine) -> _IngestedLine | None:
    """Return a record with its row, or None if it cannot be stored."""
    trial_id, run_id = owner
    event = line.event
    moment = datetime.datetime.fromtimestamp(line.time, datetime.timezone.utc)
    try:
        if isinstance(event, TrainingReport | ValidationReport):
            row = make_metric_row(
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
    except RecursionError:  # nested too deep
        return None
    return _IngestedLine(line.seq, row, event if line.kind in APPLIED else None)


def _make_damaged_row(owner: Owner, offset: int, text: bytes) -> _IngestedLine:
    """Return the event for a line with a wrong checksum, which a machine crash leaves."""
    excerpt = text[:_MAX_EXCERPT].decode("ascii", "backslashreplace")
    row = {
        "trial_id": owner[0],
        "run_id": owner[1],
        "seq": None,
        "kind": "damaged",
        "payload": {"offset": offset, "bytes": len(text) + 1, "text": excerpt},
        "reported_at": now(),
    }
    return _IngestedLine(None, row)


def ingest_log(database: Database, path: Path, start: LogPosition) -> LogPosition:
    """Add the complete lines of a log that are not yet in the database.

    The rows of a chunk and the position after it are written in one transaction. So the process may
    be killed at any time, and any number of processes may call this concurrently.

    Args:
        database: The records.
        path: The log.
        start: The position that the caller last saw. A wrong position only costs time.

    Raises:
        EventLogDamagedError: If the file is not a log, or shorter than before.
        DatabaseError: If its trial is not in this database, or the database cannot be used.
    """
    added, position = 0, start
    while True:
        part = read_event_log(path, position.offset)
        if not part.lines:
            return dataclasses.replace(position, added=added)
        position = _store_part(database, part)
        added += position.added


def read_positions(
    database: Database, trial_ids: Sequence[int] | None = None
) -> dict[Owner, LogPosition]:
    """Return the positions of the logs of some or all trials, by trial and run."""
    with database._begin_read() as connection:
        return {
            (row.trial_id, row.run_id): LogPosition(row.byte_offset, row.last_seq)
            for condition in make_in_conditions(event_logs.c.trial_id, trial_ids)
            for row in connection.execute(select(event_logs).where(condition))
        }


def _store_part(database: Database, part: EventLogPart) -> LogPosition:
    """Add a part, unless another process has advanced the position. Return the position."""
    assert part.header is not None  # a part without a header has no lines
    owner = (part.header.trial_id, part.header.run_id)
    entries = _parse_part(owner, part)
    try:
        with database._begin_write() as connection:
            return _add_entries(connection, owner, part, entries)
    except IntegrityError as error:
        # On a database server, two processes may start a log concurrently. The second process
        # continues after the lines of the first.
        position = read_positions(database, [owner[0]]).get(owner)
        if position is not None and position.offset > part.start:
            return position
        raise DatabaseError(
            f"cannot ingest reports of trial {owner[0]}, run {owner[1]}: {error.orig}.\n"
            f"The trial is not in {database.url}, or the reports were already ingested."
        ) from error
