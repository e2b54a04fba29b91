"""Move the records of a spool into the database, each once."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sqlalchemy import insert, select, update
from sqlalchemy.exc import IntegrityError

from detcore.database._lines import Line, NotASpoolError, parse_line, read_header
from detcore.database._metrics import insert_metrics, metric_row
from detcore.database._queries import among, now
from detcore.database._records import MetricRecord
from detcore.database._schema import events, spools
from detcore.database._text import MAX_INDEXED
from detcore.database._values import encode_metrics
from detcore.errors import DatabaseError

if TYPE_CHECKING:
    from detcore.database._database import Database

__all__ = ["Position", "SpoolDamagedError", "drain", "read_positions"]

# Small enough that neither the write lock nor Python's own is held long.
_CHUNK_BYTES = 256 * 1024
_METRICS = ("training", "validation")
_SHOWN = 200


class SpoolDamagedError(DatabaseError):
    """A spool that cannot be read at all."""


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


@dataclasses.dataclass(slots=True)
class _Batch:
    """Finished lines of a spool as rows."""

    end: int
    last_seq: int
    metrics: list[dict[str, Any]]
    events: list[dict[str, Any]]


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
    added = 0
    try:
        with path.open("rb") as file:
            header = read_header(file, path)
            if header is None:
                return start
            owner = (header.trial_id, header.run_id)
            first = Position(header.records_at)
            position = start if start.offset else first
            while True:
                batch = _read_batch(file, owner, position)
                if batch is None:
                    return dataclasses.replace(position, added=added)
                position = _store(database, owner, first, position, batch)
                added += position.added
    except NotASpoolError as error:
        raise SpoolDamagedError(
            f"{error}.\nWhat was reported there cannot be read.\nMove the file away: mv {path} "
            f"{path}.damaged"
        ) from error


def read_positions(
    database: Database, trial_ids: Sequence[int] | None = None
) -> dict[tuple[int, int], Position]:
    """Return the positions of all spools, or of those of some trials, by trial and run."""
    with database._read() as connection:
        return {
            (row.trial_id, row.run_id): Position(row.byte_offset, row.last_seq)
            for condition in among(spools.c.trial_id, trial_ids)
            for row in connection.execute(select(spools).where(condition))
        }


def _read_batch(file: Any, owner: tuple[int, int], position: Position) -> _Batch | None:
    """Read finished lines from a position on; None if there are none."""
    size = os.fstat(file.fileno()).st_size
    if size < position.offset:
        raise NotASpoolError(
            f"{file.name} has {size} bytes, but {position.offset} were taken in before; "
            "the file was replaced or cut"
        )
    file.seek(position.offset)
    data = file.read(_CHUNK_BYTES)
    if not data.endswith(b"\n"):
        data += file.readline()  # a record may be longer than a chunk
    texts = data[: data.rfind(b"\n") + 1].splitlines(keepends=True)
    lines = [parse_line(text[:-1]) for text in texts]
    if position.offset + len(data) >= size:
        # At the end of the file a line that is not whole may be one that is being written.
        while lines and lines[-1] is None:
            lines.pop()
    if not lines:
        return None
    batch = _Batch(end=position.offset, last_seq=position.last_seq, metrics=[], events=[])
    for text, line in zip(texts, lines, strict=False):
        if line is None:
            batch.events.append(_damaged(owner, batch.end, text))
        elif line.seq > batch.last_seq:
            batch.last_seq = line.seq
            _add(batch, owner, line)
        batch.end += len(text)
    return batch


def _add(batch: _Batch, owner: tuple[int, int], line: Line) -> None:
    trial_id, run_id = owner
    payload = line.payload
    if line.kind in _METRICS and _is_report(payload):
        record = MetricRecord(
            trial_id=trial_id,
            run_id=run_id,
            seq=line.seq,
            kind=line.kind,
            steps_completed=payload["steps_completed"],
            metrics=payload["metrics"],
            batch_metrics=payload.get("batch_metrics"),
            n_records=payload.get("n_records"),
            reported_at=line.reported_at,
        )
        batch.metrics.append(metric_row(record))
        return
    batch.events.append(
        {
            "trial_id": trial_id,
            "run_id": run_id,
            "seq": line.seq,
            "kind": line.kind[:MAX_INDEXED],
            "payload": encode_metrics(payload),
            "reported_at": line.reported_at.timestamp(),
        }
    )


def _is_report(payload: Any) -> bool:
    if not isinstance(payload, dict) or not isinstance(payload.get("metrics"), dict):
        return False
    steps = payload.get("steps_completed")
    records = payload.get("n_records")
    return _is_count(steps) and (records is None or _is_count(records))


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and abs(value) < 2**63


def _damaged(owner: tuple[int, int], offset: int, text: bytes) -> dict[str, Any]:
    """Return the event that tells of a line whose checksum is wrong (the machine crashed)."""
    shown = text[:_SHOWN].decode("ascii", "backslashreplace")
    return {
        "trial_id": owner[0],
        "run_id": owner[1],
        "seq": None,
        "kind": "damaged",
        "payload": encode_metrics({"offset": offset, "bytes": len(text), "text": shown}),
        "reported_at": now(),
    }


def _store(
    database: Database, owner: tuple[int, int], first: Position, expected: Position, batch: _Batch
) -> Position:
    """Add rows and move the position, unless somebody else has moved it; return where it is."""
    here = (spools.c.trial_id == owner[0], spools.c.run_id == owner[1])
    try:
        with database._write() as connection:
            row = connection.execute(select(spools).where(*here).with_for_update()).fetchone()
            known = Position(row.byte_offset, row.last_seq) if row else first
            if (known.offset, known.last_seq) != (expected.offset, expected.last_seq):
                return known
            insert_metrics(connection, batch.metrics)
            if batch.events:
                connection.execute(insert(events), batch.events)
            moved = {"byte_offset": batch.end, "last_seq": batch.last_seq}
            if row:
                connection.execute(update(spools).where(*here).values(**moved))
            else:
                connection.execute(
                    insert(spools).values(trial_id=owner[0], run_id=owner[1], **moved)
                )
    except IntegrityError as error:
        # On a server two may begin a spool at once; the second one goes on from the first's end.
        known = read_positions(database).get(owner, first)
        if known.offset > expected.offset:
            return Position(known.offset, known.last_seq)
        raise DatabaseError(
            f"cannot take in reports of trial {owner[0]}, run {owner[1]}: {error.orig}.\n"
            f"There is no such trial in {database.url}, or the reports are there already."
        ) from error
    return Position(batch.end, batch.last_seq, len(batch.metrics) + len(batch.events))
