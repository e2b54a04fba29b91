"""Take in what workers have reported but could not move into the database themselves."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING

from sqlalchemy import select

from detcore.database._drain import Position, SpoolDamagedError, drain, read_positions
from detcore.database._schema import runs, trials

if TYPE_CHECKING:
    from detcore.database._database import Database

__all__ = ["ingest_spools"]

_LOG = logging.getLogger("detcore.database")


def ingest_spools(database: Database, home: Path) -> int:
    """Add every finished record of the spools under a home that is not in the database.

    Every reader does so first, so that what a killed worker reported is there. Any number of
    processes may do so at once, also while workers report.

    Args:
        database: Where to.
        home: `Environment.home`; spools lie at
            ``experiments/<experiment_id>/trials/<trial_id>/spool-<run_id>.jsonl``.

    Returns:
        How many records were added by this call.

    Raises:
        DatabaseError: If the database cannot be used. A spool that is damaged is left out with a
            warning, so that one of them does not hide everything else.
    """
    positions = read_positions(database)
    known: dict[int, set[int]] | None = None
    added = 0
    for path in sorted(Path(home).glob("experiments/*/trials/*/spool-*.jsonl")):
        owner = _owner(path)
        if owner is None:
            continue
        position = positions.get(owner, Position())
        if _size(path) <= position.offset:
            continue
        known = _known_runs(database) if known is None else known
        if _belongs(owner, known):
            added += _take_in(database, path, position)
    return added


def _owner(path: Path) -> tuple[int, int] | None:
    trial, run = path.parent.name, path.stem.removeprefix("spool-")
    return (int(trial), int(run)) if trial.isdigit() and run.isdigit() else None


def _known_runs(database: Database) -> dict[int, set[int]]:
    with database._read() as connection:
        known: dict[int, set[int]] = {
            row.id: set() for row in connection.execute(select(trials.c.id))
        }
        for row in connection.execute(select(runs.c.trial_id, runs.c.run_id)):
            known[row.trial_id].add(row.run_id)
    return known


def _belongs(owner: tuple[int, int], known: dict[int, set[int]]) -> bool:
    """Return whether a spool is of this database, and not of another one with the same home."""
    trial_id, run_id = owner
    started = known.get(trial_id)
    return started is not None and (not started or run_id in started)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:  # removed since it was listed
        return 0


def _take_in(database: Database, path: Path, position: Position) -> int:
    try:
        return drain(database, path, position).added
    except (SpoolDamagedError, FileNotFoundError, PermissionError) as error:
        _LOG.warning("reports are left out: %s", error)
        return 0
