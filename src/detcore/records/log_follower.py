"""Move the logs of trials into the records: while they grow, and once they have ended."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from sqlalchemy import select

from detcore.contract.values import TrialState
from detcore.log.lines import EventLogDamagedError
from detcore.log.reading import event_log_owner
from detcore.records.log_ingestion import LogPosition, ingest_log, read_positions
from detcore.records.queries import among
from detcore.records.schema import runs, trials

if TYPE_CHECKING:
    from detcore.records.database import Database

_INTERVAL_S = 0.25
_RETRY_S = 1.0
_LOG = logging.getLogger("detcore.records")


def ingest_event_logs(
    database: Database,
    home: Path,
    *,
    experiment_id: int | None = None,
    trial_id: int | None = None,
) -> int:
    """Add every finished record of the event logs under a home that is not in the database.

    Every reader does so first, so that the reports of a killed worker are there. Any number of
    processes may do so at once, also while workers report.

    Args:
        database: Where to.
        home: `Environment.home`; event logs lie at
            ``experiments/<experiment_id>/trials/<trial_id>/events-<run_id>.jsonl``.
        experiment_id: Only event logs in this experiment's folder; None = all.
        trial_id: Only event logs of this trial; None = all.

    Returns:
        How many records were added by this call.

    Raises:
        DatabaseError: If the database cannot be used. A damaged log is left out with a warning,
            so that one of them does not hide everything else.
    """
    experiment, trial = ("*" if n is None else n for n in (experiment_id, trial_id))
    paths = sorted(Path(home).glob(f"experiments/{experiment}/trials/{trial}/events-*.jsonl"))
    owners = {path: owner for path in paths if (owner := event_log_owner(path)) is not None}
    if not owners:
        return 0
    everything = experiment_id is None and trial_id is None
    asked = None if everything else sorted({owner[0] for owner in owners.values()})
    positions = read_positions(database, asked)
    known: set[tuple[int, int | None]] | None = None
    added = 0
    for path, owner in owners.items():
        position = positions.get(owner, LogPosition())
        if _size(path) == position.offset:
            continue
        known = _known_runs(database, asked) if known is None else known
        if owner in known or (owner[0], None) in known:
            if database.is_read_only:
                _LOG.warning(
                    "reports in %s are not shown: %s is read-only, so they cannot be recorded.",
                    path.parent, database.url,
                )  # fmt: skip
                continue
            added += _take_in(database, path, position)
    return added


def ingest_reports(
    database: Database, home: Path, *, experiment_id: int, trial_id: int | None = None
) -> None:
    """Add reports that workers of an experiment, or of one trial, could not move.

    Of a whole experiment only trials recorded as RUNNING can have such reports: a process that
    records another state takes them in first. Looking at all takes a second for 10,000 trials.

    Args:
        database: Where to.
        home: As for `ingest_event_logs`.
        experiment_id: Which experiment.
        trial_id: Only of this trial of it.

    Raises:
        DatabaseError: As `ingest_event_logs`.
    """
    numbers = [trial_id] if trial_id is not None else [
        trial.id for trial in database.list_trials(experiment_id, states=[TrialState.RUNNING])
    ]  # fmt: skip
    for number in numbers:
        ingest_event_logs(database, home, experiment_id=experiment_id, trial_id=number)


def _known_runs(database: Database, asked: Sequence[int] | None) -> set[tuple[int, int | None]]:
    """Return trials and runs, with None for a trial that was never started.

    An event log of another run is of another database with the same home.
    """
    started = select(trials.c.id, runs.c.run_id).outerjoin(runs, runs.c.trial_id == trials.c.id)
    with database._read() as connection:
        return {
            (row.id, row.run_id)
            for condition in among(trials.c.id, asked)
            for row in connection.execute(started.where(condition))
        }


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:  # removed since it was listed
        return 0


def _take_in(database: Database, path: Path, position: LogPosition) -> int:
    try:
        return ingest_log(database, path, position).added
    except (EventLogDamagedError, FileNotFoundError, PermissionError) as error:
        _LOG.warning("reports are left out: %s", error)
        return 0


class LogFollower:
    """Moves the logs of trials into the records, in one thread.

    A failed move is retried. The logs keep the records meanwhile. It shares nothing with the
    objects that append to them, so appending never waits for it.
    """

    def __init__(self, database: Database) -> None:
        """Start the thread.

        Args:
            database: The records; they may be unreachable at times. Not closed by this.
        """
        self._database = database
        self._logs: dict[Path, LogPosition | None] = {}
        self._lock = threading.Lock()
        self._is_closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="detcore-follower", daemon=True)
        self._thread.start()

    def follow(self, log: Path) -> None:
        """Follow a log from now on; it may not exist yet."""
        with self._lock:
            self._logs[Path(log)] = None

    def unfollow(self, log: Path) -> None:
        """Stop following a log."""
        with self._lock:
            self._logs.pop(Path(log), None)

    def stop(self, timeout_s: float) -> None:
        """Move the records that were appended before this call, if possible, and end the thread.

        Args:
            timeout_s: How long to wait for it. A thread that waits for a lock of the database
                cannot be interrupted; it is a daemon.
        """
        self._is_closing.set()
        self._thread.join(timeout_s)

    def _run(self) -> None:
        is_closing = False
        while not is_closing:
            is_closing = self._is_closing.is_set()
            with self._lock:
                logs = list(self._logs.items())
            results = [self._move(log, position) for log, position in logs]
            self._is_closing.wait(_INTERVAL_S if all(results) else _RETRY_S)

    def _move(self, log: Path, position: LogPosition | None) -> bool:
        """Move the new records of a log; return False if that is to be tried again."""
        try:
            size, owner = log.stat().st_size, event_log_owner(log)
            if position is None and owner is not None:
                position = read_positions(self._database, [owner[0]]).get(owner)
            position = position or LogPosition()
            if size != position.offset:
                position = ingest_log(self._database, log, position)
        except FileNotFoundError:
            return True  # not written yet
        except Exception:  # noqa: BLE001  (a reader that takes the records in reports it)
            return False
        with self._lock:
            if log in self._logs:
                self._logs[log] = position
        return True
