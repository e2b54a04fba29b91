"""Move the records of spools into the database, each once."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from sqlalchemy import select
from sqlalchemy.exc import IntegrityError

from detcore._log import read_spool
from detcore.database._parts import Owner, Part, Position, SpoolLines, add_parts, parse_part
from detcore.database._queries import Queries, among
from detcore.database._schema import runs, spools
from detcore.errors import DatabaseError, DetcoreError, NotFoundError

if TYPE_CHECKING:
    from detcore.database._database import Database

__all__ = ["Position", "SpoolLines", "SpoolQueries", "drain", "read_positions"]


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
