"""A thread that moves the logs of trials into the records while they grow."""

from __future__ import annotations

import dataclasses
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

from detcore._log import SpoolDamagedError
from detcore.database._ingest import ingest_run
from detcore.errors import DatabaseError, DetcoreError, StorageFullError

if TYPE_CHECKING:
    from detcore.database._database import Database
    from detcore.database._drain import Position

__all__ = ["LogFollower"]

_INTERVAL_S = 0.25
_RETRY_S = 1.0
# A full disk rarely gets room while a trial ends, and the user who must make room waits for it.
_FULL_S = 2.0


@dataclasses.dataclass(frozen=True, slots=True)
class _Failure:
    """The reason why reports are not in the records."""

    log: str
    error: Exception


class LogFollower:
    """Moves the logs of trials into the records, in one thread.

    Failures are retried until it stops; `flush` and `close` raise the last one that has not gone
    away. The logs keep the records meanwhile. It shares nothing with the objects that append to
    them, so appending never waits for it.
    """

    def __init__(self, database: Database, *, full_s: float = _FULL_S) -> None:
        """Start the thread.

        Args:
            database: The records; they may be unreachable at times. Not closed by this.
            full_s: How long `close` waits while the database has no room, in seconds.
        """
        self._database = database
        self._full_s = full_s
        self._logs: dict[Path, Position | None] = {}
        self._changed = threading.Condition()
        self._asked = 0  # flushes that were asked for
        self._answered = 0  # the newest of them that is done
        self._closing = False
        self._failure: _Failure | None = None
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
            self._ask(timeout_s)

    def close(self, timeout_s: float) -> None:
        """Flush, and end the thread even if that fails. Calling it again is fine.

        Raises:
            StorageFullError: If the database has no room; after `full_s` seconds already.
            DatabaseError: As `flush`; the next reader takes the reports in.
        """
        deadline = time.monotonic() + timeout_s
        try:
            with self._changed:
                if not self._closing:
                    self._ask(timeout_s, full_s=min(self._full_s, timeout_s))
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

    def _ask(self, timeout_s: float, *, full_s: float | None = None) -> None:
        self._asked += 1
        number = self._asked
        self._changed.notify_all()
        began = time.monotonic()

        def is_over(*hopeless: type[Exception]) -> bool:
            failure = self._failure
            return self._answered >= number or (
                failure is not None and isinstance(failure.error, hopeless)
            )

        self._changed.wait_for(
            lambda: is_over(SpoolDamagedError), timeout_s if full_s is None else full_s
        )
        if full_s is not None:
            self._changed.wait_for(
                lambda: is_over(SpoolDamagedError, StorageFullError), timeout_s - full_s
            )
        if self._answered >= number:
            return
        failure = self._failure
        if failure is None:
            failure = _Failure(
                ", ".join(map(str, sorted(self._logs))),
                DatabaseError("the database did not answer in time"),
            )
        if isinstance(failure.error, SpoolDamagedError):
            raise failure.error  # waiting does not mend it
        raise self._unmoved(failure, time.monotonic() - began) from failure.error

    def _unmoved(self, failure: _Failure, waited_s: float) -> DetcoreError:
        text = (
            f"reports in {failure.log} could not be moved into {self._database.url} within "
            f"{waited_s:.1f} s: {failure.error}\n"
            "They are safe in that file; the next detcore command that reads takes them in."
        )
        if isinstance(failure.error, StorageFullError):
            return StorageFullError(text, missing_bytes=failure.error.missing_bytes)
        return DatabaseError(text)

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
                may_pass = failure is not None and not isinstance(failure.error, SpoolDamagedError)
                self._changed.wait_for(
                    lambda: self._asked > asked or self._closing,  # noqa: B023
                    _RETRY_S if may_pass else _INTERVAL_S,
                )

    def _take_in(self, logs: list[tuple[Path, Position | None]]) -> _Failure | None:
        """Move the new records of each log; return the first failure, which delays no other log."""
        first: _Failure | None = None
        for log, position in logs:
            try:
                position = ingest_run(self._database, log, position)
            except FileNotFoundError:
                continue  # not written yet
            except Exception as error:  # noqa: BLE001  (kept for flush and close, and retried)
                first = first or _Failure(str(log), error)
                continue
            with self._changed:
                if log in self._logs:
                    self._logs[log] = position
        return first
