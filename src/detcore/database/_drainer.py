"""A thread that moves a spool's records into the database while the trial trains."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

from detcore._log import SpoolDamagedError
from detcore.database._drain import Position, drain
from detcore.errors import DatabaseError, DetcoreError, StorageFullError

if TYPE_CHECKING:
    from detcore.database._database import Database

__all__ = ["SpoolDrainer"]

_INTERVAL_S = 0.5
_RETRY_S = 1.0
# A full disk rarely gets room while a trial ends, and who needs the room waits for that end.
_FULL_S = 2.0


class SpoolDrainer:
    """Moves a spool's records into the database, in its own thread.

    Failures are retried until it is closed; `flush` and `close` raise the last one if it has not
    gone away. The spool keeps the records meanwhile. It never touches the `Spool` object, so
    that appending waits for nothing here.
    """

    def __init__(self, database: Database, spool_path: Path, *, full_s: float = _FULL_S) -> None:
        """Start the thread.

        Args:
            database: Where to; not closed by this.
            spool_path: The spool; it may not exist yet.
            full_s: How long `close` waits while the database has no room, in seconds.
        """
        self._database = database
        self._path = Path(spool_path)
        self._full_s = full_s
        self._position = Position()
        self._changed = threading.Condition()
        self._asked = 0  # flushes that were asked for
        self._answered = 0  # the newest of them that is done
        self._closing = False
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="detcore-drainer", daemon=True)
        self._thread.start()

    def flush(self, timeout_s: float) -> None:
        """Wait until everything that was appended before this call is in the database.

        Raises:
            StorageFullError: If the database has had no room for `timeout_s`.
            DatabaseError: If it could not be done within `timeout_s`.
        """
        with self._changed:
            if self._closing:
                raise DatabaseError(f"the drainer of {self._path} is closed")
            self._ask(timeout_s)

    def close(self, timeout_s: float) -> None:
        """Flush, and end the thread also if that fails. Calling it again is fine.

        Raises:
            StorageFullError: If the database has no room; after `full_s` seconds already.
            DatabaseError: As `flush`; the next reader adds the records to the database.
        """
        deadline = time.monotonic() + timeout_s
        try:
            with self._changed:
                if self._closing:
                    return
                try:
                    self._ask(timeout_s, full_s=min(self._full_s, timeout_s))
                finally:
                    self._closing = True
                    self._changed.notify_all()
        finally:
            # Also after a failure: the caller closes the database next. A thread that waits for a
            # lock of the database cannot be interrupted; it is a daemon.
            self._thread.join(max(0.1, deadline - time.monotonic()))

    def _ask(self, timeout_s: float, *, full_s: float | None = None) -> None:
        self._asked += 1
        number = self._asked
        self._changed.notify_all()
        began = time.monotonic()

        def is_over(*hopeless: type[Exception]) -> bool:
            return self._answered >= number or isinstance(self._error, hopeless)

        self._changed.wait_for(
            lambda: is_over(SpoolDamagedError), timeout_s if full_s is None else full_s
        )
        if full_s is not None:
            self._changed.wait_for(
                lambda: is_over(SpoolDamagedError, StorageFullError), timeout_s - full_s
            )
        if isinstance(self._error, SpoolDamagedError):
            raise self._error  # waiting does not mend it
        if self._answered < number:
            raise self._failure(time.monotonic() - began) from self._error

    def _failure(self, waited_s: float) -> DetcoreError:
        reason = self._error or "the database did not answer in time"
        text = (
            f"reports in {self._path} could not be moved into {self._database.url} within "
            f"{waited_s:.1f} s: {reason}\n"
            "They are safe in that file; the next detcore command that reads takes them in."
        )
        if isinstance(self._error, StorageFullError):
            return StorageFullError(text, missing_bytes=self._error.missing_bytes)
        return DatabaseError(text)

    def _run(self) -> None:
        while True:
            with self._changed:
                asked, closing = self._asked, self._closing
            if closing:
                return
            try:
                self._pass()
            except Exception as error:  # noqa: BLE001  (kept for flush and close, and retried)
                self._wait(asked, error)
            else:
                self._answer(asked)

    def _pass(self) -> None:
        if self._path.exists():
            self._position = drain(self._database, self._path, self._position)

    def _answer(self, asked: int) -> None:
        with self._changed:
            self._answered, self._error = asked, None
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._asked > asked or self._closing, _INTERVAL_S)

    def _wait(self, asked: int, error: Exception) -> None:
        with self._changed:
            self._error = error
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._asked > asked or self._closing, _RETRY_S)
