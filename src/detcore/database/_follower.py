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

    Failures are retried until it stops; `flush` and `close` raise the last one that has not gone
    away. The logs keep the records meanwhile. It shares nothing with the objects that append to
    them, so appending never waits for it.
    """

    def __init__(self, database: Database) -> None:
        """Start the thread.

        Args:
            database: The records; they may be unreachable at times. Not closed by this.
        """
        self._database = database
        self._logs: dict[Path, Position | None] = {}
        self._changed = threading.Condition()
        self._asked = 0  # flushes that were asked for
        self._answered = 0  # the newest of them that is done
        self._closing = False
        self._failure: tuple[str, Exception] | None = None  # the log, and the reason
        self._thread = threading.Thread(target=self._run, name="detcore-follower", daemon=True)
        self._thread.start()

    def follow(self, log: Path) -> None:
        """Follow a log from now on; it may not exist yet."""
        with self._changed:
            self._logs[Path(log)] = None

    def unfollow(self, log: Path) -> None:
        """Stop following a log."""
        with self._changed:
            self._logs.pop(Path(log), None)

    def flush(self, timeout_s: float) -> None:
        """Wait until everything that was appended before this call is in the records.

        Raises:
            StorageFullError: If the database has had no room for `timeout_s`.
            DatabaseError: If it could not be done within `timeout_s`.
        """
        with self._changed:
            if self._closing:
                raise DatabaseError("the follower of the logs is closed")
            self._ask(timeout_s, full_s=timeout_s)

    def close(self, timeout_s: float) -> None:
        """Flush, and end the thread even if that fails. Calling it again is fine.

        Raises:
            StorageFullError: If the database has no room; after two seconds already.
            DatabaseError: As `flush`; the next reader takes the reports in.
        """
        deadline = time.monotonic() + timeout_s
        try:
            with self._changed:
                if not self._closing:
                    self._ask(timeout_s, full_s=min(_FULL_S, timeout_s))
        finally:
            # After a failure, too: the caller closes the database next.
            self.stop(max(0.1, deadline - time.monotonic()))

    def stop(self, timeout_s: float) -> None:
        """End the thread without a flush.

        Args:
            timeout_s: How long to wait for it. A thread that waits for a lock of the database
                cannot be interrupted; it is a daemon.
        """
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join(timeout_s)

    def _ask(self, timeout_s: float, *, full_s: float) -> None:
        self._asked += 1
        number = self._asked
        self._changed.notify_all()
        began = time.monotonic()

        def is_over(*hopeless: type[Exception]) -> bool:
            failure = self._failure
            return self._answered >= number or (
                failure is not None and isinstance(failure[1], hopeless)
            )

        self._changed.wait_for(lambda: is_over(EventLogDamagedError), full_s)
        self._changed.wait_for(
            lambda: is_over(EventLogDamagedError, StorageFullError), timeout_s - full_s
        )
        if self._answered >= number:
            return
        logs, error = self._failure or (
            ", ".join(map(str, sorted(self._logs))),
            DatabaseError("the database did not answer in time"),
        )
        if isinstance(error, EventLogDamagedError):
            raise error  # waiting does not mend it
        text = (
            f"reports in {logs} could not be moved into {self._database.url} within "
            f"{time.monotonic() - began:.1f} s: {error}\n"
            "They are safe in that file; the next detcore command that reads takes them in."
        )
        if isinstance(error, StorageFullError):
            raise StorageFullError(text, missing_bytes=error.missing_bytes) from error
        raise DatabaseError(text) from error

    def _run(self) -> None:
        while True:
            with self._changed:
                asked, logs = self._asked, list(self._logs.items())
                if self._closing:
                    return
            failure = self._take_in(logs)
            with self._changed:
                self._failure = failure
                if failure is None:
                    self._answered = asked
                self._changed.notify_all()
                may_pass = failure is not None and not isinstance(failure[1], EventLogDamagedError)
                self._changed.wait_for(
                    lambda: self._asked > asked or self._closing,  # noqa: B023
                    _RETRY_S if may_pass else _INTERVAL_S,
                )

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
            except Exception as error:  # noqa: BLE001  (kept for flush and close, and retried)
                first = first or (str(log), error)
                continue
            with self._changed:
                if log in self._logs:
                    self._logs[log] = position
        return first
