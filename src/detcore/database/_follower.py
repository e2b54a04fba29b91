"""Move the logs of trials into the records: while they grow, and once they have ended."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from sqlalchemy import select

from detcore._log import EventLogDamagedError, event_log_owner
from detcore.contract.errors import DatabaseError, StorageFullError
from detcore.contract.values import TrialState
from detcore.database._drain import Position, drain, read_positions
from detcore.database._queries import among
from detcore.database._schema import runs, trials

if TYPE_CHECKING:
    from detcore.database._database import Database

_INTERVAL_S = 0.25
_RETRY_S = 1.0
# The last attempt starts at the deadline.
_LAST_S = 1.0
# A full disk rarely gets room while a trial ends, and the user who must make room waits for it.
_FULL_S = 2.0
_LOG = logging.getLogger("detcore.database")


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
        position = positions.get(owner, Position())
        if _size(path) <= position.offset:
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


def _take_in(database: Database, path: Path, position: Position) -> int:
    try:
        return drain(database, path, position).added
    except (EventLogDamagedError, FileNotFoundError, PermissionError) as error:
        _LOG.warning("reports are left out: %s", error)
        return 0


class LogFollower:
    """Moves the logs of trials into the records, in one thread.

    Failures are retried until it closes. The logs keep the records meanwhile. It shares nothing
    with the objects that append to them, so appending never waits for it.
    """

    def __init__(self, database: Database) -> None:
        """Start the thread.

        Args:
            database: The records; they may be unreachable at times. Not closed by this.
        """
        self._database = database
        self._logs: dict[Path, Position | None] = {}
        self._lock = threading.Lock()
        self._is_closing = threading.Event()
        self._deadline = self._full_deadline = 0.0
        self._failure: tuple[str, Exception] | None = None  # the log, and the reason
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

    def close(self, timeout_s: float) -> None:
        """Wait until everything that was appended before this call is in the records.

        The thread ends even if that fails. A thread that waits for a lock of the database cannot be
        interrupted; it is a daemon.

        Raises:
            StorageFullError: If the database has no room; after two seconds already.
            DatabaseError: If it could not be done within `timeout_s`; the next reader takes the
                reports in.
        """
        began = time.monotonic()
        self._deadline = began + timeout_s
        self._full_deadline = began + min(_FULL_S, timeout_s)
        self._is_closing.set()
        self._thread.join(timeout_s + _LAST_S)
        if self._failure is None and not self._thread.is_alive():
            return
        logs, error = self._failure or (
            ", ".join(map(str, sorted(self._logs))),
            DatabaseError("the database did not answer in time"),
        )
        if isinstance(error, EventLogDamagedError):
            raise error  # waiting does not fix it
        text = (
            f"reports in {logs} could not be moved into {self._database.url} within "
            f"{time.monotonic() - began:.1f} s: {error}\n"
            "They are safe in that file; the next detcore command that reads takes them in."
        )
        if isinstance(error, StorageFullError):
            raise StorageFullError(text, missing_bytes=error.missing_bytes) from error
        raise DatabaseError(text) from error

    def stop(self, timeout_s: float) -> None:
        """End the thread after what it is moving now; wait for it at most `timeout_s`."""
        self._is_closing.set()
        self._thread.join(timeout_s)

    def _run(self) -> None:
        while True:
            is_closing = self._is_closing.is_set()
            with self._lock:
                logs = list(self._logs.items())
            self._failure = self._take_in(logs)
            if not is_closing:
                self._is_closing.wait(_INTERVAL_S if self._failure is None else _RETRY_S)
            elif self._is_over():
                return
            else:
                time.sleep(max(0.0, min(_INTERVAL_S, self._deadline - time.monotonic())))

    def _is_over(self) -> bool:
        """Whether no further attempt is made after `close` or `stop`."""
        if self._failure is None or isinstance(self._failure[1], EventLogDamagedError):
            return True
        is_full = isinstance(self._failure[1], StorageFullError)
        return time.monotonic() >= (self._full_deadline if is_full else self._deadline)

    def _take_in(self, logs: list[tuple[Path, Position | None]]) -> tuple[str, Exception] | None:
        """Move the new records of each log; return the first failure, which delays no other log."""
        first: tuple[str, Exception] | None = None
        for log, known in logs:
            try:
                size, owner, position = log.stat().st_size, event_log_owner(log), known
                if position is None and owner is not None:
                    position = read_positions(self._database, [owner[0]]).get(owner)
                position = position or Position()
                if size != position.offset:
                    position = drain(self._database, log, position)
            except FileNotFoundError:
                continue  # not written yet
            except Exception as error:  # noqa: BLE001  (kept for close, and retried)
                first = first or (str(log), error)
                continue
            with self._lock:
                if log in self._logs:
                    self._logs[log] = position
        return first
