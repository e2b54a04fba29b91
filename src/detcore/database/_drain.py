"""Move the records of a spool into the database, each once."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from sqlalchemy import select
from sqlalchemy.exc import IntegrityError

from detcore.database._lines import NotASpoolError, parse_line, read_header
from detcore.database._parts import Part, Position, add_parts, parse_part
from detcore.database._queries import among
from detcore.database._schema import spools
from detcore.errors import DatabaseError

if TYPE_CHECKING:
    from detcore.database._database import Database

__all__ = ["Position", "SpoolDamagedError", "drain", "read_part", "read_positions"]

# Small enough that neither the write lock nor Python's own is held long.
_CHUNK_BYTES = 256 * 1024


class SpoolDamagedError(DatabaseError):
    """A spool that cannot be read at all."""


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
            position = start if start.offset else Position(header.records_at)
            while True:
                data = read_part(file, position.offset)
                if not data:
                    return dataclasses.replace(position, added=added)
                part = parse_part(data, owner, first=header.records_at, start=position.offset)
                position = _store(database, part)
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


def read_part(file: BinaryIO, offset: int) -> bytes:
    """Read finished lines of a spool from a byte on: some, if there are many; b"" if none.

    Raises:
        NotASpoolError: If the file is shorter.
    """
    size = os.fstat(file.fileno()).st_size
    if size < offset:
        raise NotASpoolError(
            f"{file.name} has {size} bytes, but {offset} were taken in before; "
            "the file was replaced or cut"
        )
    file.seek(offset)
    data = file.read(_CHUNK_BYTES)
    if not data.endswith(b"\n"):
        data += file.readline()  # a record may be longer than a chunk
    is_all = offset + len(data) >= size
    data = data[: data.rfind(b"\n") + 1]
    # At the end of the file a line that is not whole may be one that is being written.
    while is_all and data:
        begin = data.rfind(b"\n", 0, -1) + 1
        if parse_line(data[begin:-1]) is not None:
            break
        data = data[:begin]
    return data


def _store(database: Database, part: Part) -> Position:
    """Add a part, unless somebody else has moved its spool's position; return where it is."""
    try:
        with database._write() as connection:
            [position] = add_parts(connection, [part])
    except IntegrityError as error:
        # On a server two may begin a spool at once; the second one goes on from the first's end.
        known = read_positions(database).get(part.owner, Position(part.first))
        if known.offset > part.start:
            return known
        raise DatabaseError(
            f"cannot take in reports of trial {part.owner[0]}, run {part.owner[1]}: {error.orig}.\n"
            f"There is no such trial in {database.url}, or the reports are there already."
        ) from error
    assert position is not None  # only parts of unknown runs are refused, when that is asked for
    return position
