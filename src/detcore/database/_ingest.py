"""Take in reports that workers could not move into the database themselves."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from sqlalchemy import select

from detcore._log import SpoolDamagedError, spool_owner
from detcore.database._drain import Position, drain, read_positions
from detcore.database._queries import among
from detcore.database._schema import runs, trials
from detcore.types import TrialState

if TYPE_CHECKING:
    from detcore.database._database import Database

__all__ = ["ingest_reports", "ingest_run", "ingest_spools"]

_LOG = logging.getLogger("detcore.database")


def ingest_spools(
    database: Database,
    home: Path,
    *,
    experiment_id: int | None = None,
    trial_id: int | None = None,
) -> int:
    """Add every finished record of the spools under a home that is not in the database.

    Every reader does so first, so that the reports of a killed worker are there. Any number of
    processes may do so at once, also while workers report.

    Args:
        database: Where to.
        home: `Environment.home`; spools lie at
            ``experiments/<experiment_id>/trials/<trial_id>/spool-<run_id>.jsonl``.
        experiment_id: Only spools in this experiment's folder; None = all.
        trial_id: Only spools of this trial; None = all.

    Returns:
        How many records were added by this call.

    Raises:
        DatabaseError: If the database cannot be used. A spool that is damaged is left out with a
            warning, so that one of them does not hide everything else.
    """
    experiment, trial = ("*" if n is None else n for n in (experiment_id, trial_id))
    paths = sorted(Path(home).glob(f"experiments/{experiment}/trials/{trial}/spool-*.jsonl"))
    if not paths:
        return 0
    owners = [owner for owner in map(spool_owner, paths) if owner is not None]
    everything = experiment_id is None and trial_id is None
    asked = None if everything else sorted({owner[0] for owner in owners})
    positions = read_positions(database, asked)
    known: dict[int, set[int]] | None = None
    added = 0
    for path in paths:
        owner = spool_owner(path)
        if owner is None:
            continue
        position = positions.get(owner, Position())
        if _size(path) <= position.offset:
            continue
        known = _known_runs(database, asked) if known is None else known
        if _belongs(owner, known):
            added += _take_in(database, path, position)
    return added


def ingest_run(database: Database, log: Path, start: Position | None = None) -> Position:
    """Add the finished records of one run's log that are not in the database.

    Args:
        database: Where to.
        log: The log, by the name that `spool_path` gives it.
        start: Position that an earlier call returned, or None. A wrong one costs time only.

    Returns:
        The position up to which the log is in the database.

    Raises:
        SpoolDamagedError: If the file is not a log, or shorter than it was.
        FileNotFoundError: If it does not exist.
        DatabaseError: If the database cannot be used.
    """
    size, owner = log.stat().st_size, spool_owner(log)
    if start is None and owner is not None:
        start = read_positions(database, [owner[0]]).get(owner)
    start = start or Position()
    return drain(database, log, start) if size != start.offset else start


def ingest_reports(
    database: Database, home: Path, *, experiment_id: int, trial_id: int | None = None
) -> None:
    """Add reports that workers of an experiment, or of one trial, could not move.

    Of a whole experiment only trials recorded as RUNNING can have such reports: a process that
    records another state takes them in first. Looking at all takes a second for 10,000 trials.

    Args:
        database: Where to.
        home: As for `ingest_spools`.
        experiment_id: Which experiment.
        trial_id: Only of this trial of it.

    Raises:
        DatabaseError: As `ingest_spools`.
    """
    numbers = [trial_id] if trial_id is not None else [
        trial.id for trial in database.list_trials(experiment_id, states=[TrialState.RUNNING])
    ]  # fmt: skip
    for number in numbers:
        ingest_spools(database, home, experiment_id=experiment_id, trial_id=number)


def _known_runs(database: Database, asked: Sequence[int] | None) -> dict[int, set[int]]:
    started = select(trials.c.id, runs.c.run_id).outerjoin(runs, runs.c.trial_id == trials.c.id)
    known: dict[int, set[int]] = {}
    with database._read() as connection:
        for condition in among(trials.c.id, asked):
            for row in connection.execute(started.where(condition)):
                known.setdefault(row.id, set())
                if row.run_id is not None:
                    known[row.id].add(row.run_id)
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
