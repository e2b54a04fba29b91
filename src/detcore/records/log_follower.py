"""Ingest the event logs of trials, while they grow and after they have ended."""

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
from detcore.records.queries import make_in_conditions
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
    """Add the complete records of all event logs that are not yet in the database.

    Every reader does this first, so that it sees the reports of killed workers. Any number of
    processes may call it concurrently, also while workers report.

    Args:
        database: The records.
        home: `Environment.home`. Event logs are at
            ``experiments/<experiment_id>/trials/<trial_id>/events-<run_id>.jsonl``.
        experiment_id: Ingest only event logs of this experiment; None = all.
        trial_id: Ingest only event logs of this trial; None = all.

    Returns:
        Number of records that this call added.

    Raises:
        DatabaseError: If the database cannot be used. A damaged log is skipped with a warning, so
            that it does not hide other logs.
    """
    experiment, trial = ("*" if n is None else n for n in (experiment_id, trial_id))
    paths = sorted(Path(home).glob(f"experiments/{experiment}/trials/{trial}/events-*.jsonl"))
    owners = {path: owner for path in paths if (owner := event_log_owner(path)) is not None}
    if not owners:
        return 0
    everything = experiment_id is None and trial_id is None
    trial_ids = None if everything else sorted({owner[0] for owner in owners.values()})
    positions = read_positions(database, trial_ids)
    recorded: set[tuple[int, int | None]] | None = None
    num_added = 0
    for path, owner in owners.items():
        position = positions.get(owner, LogPosition())
        if _get_size(path) == position.offset:
            continue
        recorded = _read_runs(database, trial_ids) if recorded is None else recorded
        if owner in recorded or (owner[0], None) in recorded:
            if database.is_read_only:
                _LOG.warning(
                    "reports in %s are not shown: %s is read-only, so they cannot be recorded.",
                    path.parent, database.url,
                )  # fmt: skip
                continue
            num_added += _ingest_or_warn(database, path, position)
    return num_added


def ingest_reports(
    database: Database, home: Path, *, experiment_id: int, trial_id: int | None = None
) -> None:
    """Add reports of an experiment, or of one trial, that have not been ingested yet.

    Without `trial_id`, only trials recorded as RUNNING are checked. A process that records another
    state ingests the reports first, and checking all logs takes a second for 10,000 trials.

    Args:
        database: The records.
        home: As for `ingest_event_logs`.
        experiment_id: The experiment.
        trial_id: Ingest only reports of this trial.

    Raises:
        DatabaseError: As `ingest_event_logs`.
    """
    numbers = [trial_id] if trial_id is not None else [
        trial.id for trial in database.list_trials(experiment_id, states=[TrialState.RUNNING])
    ]  # fmt: skip
    for number in numbers:
        ingest_event_logs(database, home, experiment_id=experiment_id, trial_id=number)


def _read_runs(database: Database, trial_ids: Sequence[int] | None) -> set[tuple[int, int | None]]:
    """Return recorded trials and runs, with None for a trial that was never started.

    An event log of another run belongs to another database with the same home.
    """
    started = select(trials.c.id, runs.c.run_id).outerjoin(runs, runs.c.trial_id == trials.c.id)
    with database._begin_read() as connection:
        return {
            (row.id, row.run_id)
            for condition in make_in_conditions(trials.c.id, trial_ids)
            for row in connection.execute(started.where(condition))
        }


def _get_size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:  # removed after it was listed
        return 0


def _ingest_or_warn(database: Database, path: Path, position: LogPosition) -> int:
    try:
        return ingest_log(database, path, position).added
    except (EventLogDamagedError, FileNotFoundError, PermissionError) as error:
        _LOG.warning("reports were skipped: %s", error)
        return 0


class LogFollower:
    """Ingests the event logs of trials in one thread.

    Failures are retried, and the logs keep the records in the meantime. The thread shares nothing
    with the objects that append to the logs, so appending never waits for it.
    """

    def __init__(self, database: Database) -> None:
        """Start the thread.

        Args:
            database: The records, which may be unreachable at times. The caller closes them.
        """
        self._database = database
        self._logs: dict[Path, LogPosition | None] = {}
        self._lock = threading.Lock()
        self._is_closing = threading.Event()
        self._thread = threading.Thread(
            target=self._move_logs, name="detcore-follower", daemon=True
        )
        self._thread.start()

    def follow(self, log: Path) -> None:
        """Start following a log, which may not exist yet."""
        with self._lock:
            self._logs[Path(log)] = None

    def unfollow(self, log: Path) -> None:
        """Stop following a log."""
        with self._lock:
            self._logs.pop(Path(log), None)

    def stop(self, timeout_s: float) -> None:
        """Ingest the records that were appended before this call, if possible, and end the thread.

        Args:
            timeout_s: Maximum time to wait for the thread. If it waits for a lock of the database,
                it cannot be interrupted, but it is a daemon thread.
        """
        self._is_closing.set()
        self._thread.join(timeout_s)

    def _move_logs(self) -> None:
        is_closing = False
        while not is_closing:
            is_closing = self._is_closing.is_set()
            with self._lock:
                logs = list(self._logs.items())
            results = [self._move_log(log, position) for log, position in logs]
            self._is_closing.wait(_INTERVAL_S if all(results) else _RETRY_S)

    def _move_log(self, log: Path, position: LogPosition | None) -> bool:
        """Ingest the new records of a log. Return False if this must be retried."""
        try:
            size, owner = log.stat().st_size, event_log_owner(log)
            if position is None and owner is not None:
                position = read_positions(self._database, [owner[0]]).get(owner)
            position = position or LogPosition()
            if size != position.offset:
                position = ingest_log(self._database, log, position)
        except FileNotFoundError:
            return True  # not written yet
        except Exception:  # noqa: BLE001  (the next reader ingests the records and reports it)
            return False
        with self._lock:
            if log in self._logs:
                self._logs[log] = position
        return True
