"""Move the records of a spool into the database, each once."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from sqlalchemy import select
from sqlalchemy.exc import IntegrityError

from detcore._log import read_spool
from detcore.database._parts import Part, Position, add_parts, parse_part
from detcore.database._queries import among
from detcore.database._schema import spools
from detcore.errors import DatabaseError

if TYPE_CHECKING:
    from detcore.database._database import Database

__all__ = ["Position", "drain", "read_positions"]


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
        owner = (found.header.trial_id, found.header.run_id)
        first = found.header.records_at
        part = parse_part(found.lines, owner, first=first, start=found.start)
        position = _store(database, part)
        added += position.added


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
    assert position is not None  # only parts of unknown runs are refused, when that is asked for
    return position
