"""A thread that sends a spool's records to a server while the trial trains."""

from __future__ import annotations

import logging
import random
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from detcore.database import SpoolDamagedError, is_spool_in_use, read_unsent, spool_owner
from detcore.errors import (
    ConfigError,
    DatabaseError,
    DetcoreError,
    ForbiddenError,
    NotFoundError,
    UnauthenticatedError,
    in_one_line,
)
from detcore.remote._refusal import ServerAway

if TYPE_CHECKING:
    from detcore.remote._reach import Reach
    from detcore.remote._session import Session

__all__ = ["SpoolSender", "send_spool"]

_LOG = logging.getLogger("detcore.records")
_INTERVAL_S = 0.25
_FIRST_RETRY_S = 0.25
_LAST_RETRY_S = 5.0
# These are not mended by asking often: somebody has to do something.
_FINAL = (UnauthenticatedError, ForbiddenError, NotFoundError, ConfigError, SpoolDamagedError)
_REFUSED_RETRY_S = 20.0
_TIMEOUT_S = 15.0
# The end of a trial tries a server once more that is known to be away, and no longer than this.
_AWAY_WAIT_S = 0.5


def _send_part(session: Session, path: Path, offset: int, *, timeout_s: float) -> tuple[int, bool]:
    """Send some of a spool to a server, once.

    Args:
        session: The server.
        path: The spool.
        offset: Byte up to which the server is thought to know it; 0: the beginning.
        timeout_s: How long to wait for the answer.

    Returns:
        Byte up to which the server knows it now, and whether there was nothing to send.

    Raises:
        ServerAway: If the server did not answer; what was sent may have arrived.
        SpoolDamagedError: If the file is not a spool, or shorter than what the server knows.
        DetcoreError: What the server refused it with.
    """
    unsent = read_unsent(path, offset)
    if unsent is None or not unsent.lines:
        return offset, True
    answer: Any = session.ask(
        "POST",
        f"/api/detcore/v1/trials/{unsent.trial_id}/runs/{unsent.run_id}/spool",
        body=unsent.lines,
        params={"offset": unsent.start, "first": unsent.first},
        timeout_s=timeout_s,
        num_tries=1,
    )
    # Another one than the end of what was sent: somebody else has moved it, or the server was
    # brought back from a backup. It is right in both cases.
    known = int(answer["offset"])
    if known == unsent.start:
        raise DatabaseError(f"{session.url} takes nothing of {path} from byte {known} on")
    return known, False


class SpoolSender:
    """Sends a spool's records to a server, in a thread of its own, in their order.

    The server takes each in once: it keeps the position up to which it has them in the same
    transaction. What it does not get stays in the spool. What earlier runs of the trial left goes
    first. The thread never touches the `Spool` object, so that appending waits for nothing here,
    and nothing here ends a trial.
    """

    def __init__(self, session: Session, spool_path: Path, reach: Reach) -> None:
        """Start the thread.

        Args:
            session: The server; not closed by this.
            spool_path: The spool; it may not exist yet.
            reach: Told whether the server answers.
        """
        self._session = session
        self._path = Path(spool_path)
        self._reach = reach
        self._earlier: list[Path] | None = None
        self._offset = 0
        self._changed = threading.Condition()
        self._asked = 0  # flushes that were asked for
        self._answered = 0  # the newest of them that is done
        self._tried = 0  # the newest of them that was tried
        self._is_closing = False
        self._has_given_up = False
        self._problem: Exception | None = None
        self._has_told = False
        self._retry_s = 0.0
        self._thread = threading.Thread(target=self._run, name="detcore-sender", daemon=True)
        self._thread.start()

    def settle(self, timeout_s: float) -> bool:
        """Wait until the server has everything that was appended before; whether it has.

        A server that is away is tried once more, and waited for no longer than a moment.

        Args:
            timeout_s: How long to wait, in seconds.
        """
        with self._changed:
            if self._is_closing:
                return False
            self._asked += 1
            number = self._asked
            self._changed.notify_all()
            began = time.monotonic()
            while self._answered < number:
                is_away = self._problem is not None
                most_s = _AWAY_WAIT_S if is_away or self._has_given_up else timeout_s
                left_s = began + min(most_s, timeout_s) - time.monotonic()
                if left_s <= 0 or (is_away and self._tried >= number):
                    self._has_given_up = True
                    return False
                self._changed.wait(left_s)
            return True

    def flush(self, timeout_s: float) -> None:
        """Send what there is, if that can be done in time; the rest stays in the spool.

        Args:
            timeout_s: How long to wait, in seconds.
        """
        self.settle(timeout_s)

    def close(self, timeout_s: float) -> None:
        """Send what is left, if that can be done in time, and end the thread.

        What stays in the spool is told of, and is no failure. Calling it again is fine.

        Args:
            timeout_s: How long to wait, in seconds.
        """
        if self._is_closing:
            return
        is_done = self.settle(timeout_s)
        with self._changed:
            self._is_closing = True
            self._changed.notify_all()
        # It may be waiting for an answer, which cannot be interrupted; it is a daemon.
        self._thread.join(0.1 if not is_done else _AWAY_WAIT_S)
        if not is_done:
            url, why = self._session.url, self._problem or "it did not answer in time"
            text = in_one_line(
                f"not all reports have reached {url}: {why}",
                f"They are kept in {self._path}, and get there when the trial starts again, or by: "
                f"detcore plugins deliver --master {url}",
            )
            _LOG.warning("%s", text)

    def _run(self) -> None:
        while True:
            with self._changed:
                asked = self._asked
                if self._is_closing:
                    return
            was_away = self._reach.is_away
            try:
                self._offset, is_all = self._pass()
            except Exception as error:  # noqa: BLE001  (told, and tried again: nothing is lost)
                self._failed(asked, error)
                continue
            # Somebody else may have found it away meanwhile, where there was nothing to send: that
            # stands until the server was asked since.
            if was_away:
                self._reach.found()
            self._succeeded(asked, is_all=is_all)

    def _pass(self) -> tuple[int, bool]:
        if self._earlier is None:
            self._earlier = _spools_before(self._path)
        while self._earlier:
            self._send_earlier(self._earlier[0])
            self._earlier.pop(0)
        if self._reach.is_away:
            # Somebody else may have found it away, with nothing to send: ask for its sake.
            self._probe()
        if not self._path.exists():
            return 0, True
        return _send_part(self._session, self._path, self._offset, timeout_s=_TIMEOUT_S)

    def _send_earlier(self, path: Path) -> None:
        """Send what the server does not know of an earlier run; what it refuses is left."""
        try:
            if not is_spool_in_use(path):
                send_spool(self._session, path, timeout_s=_TIMEOUT_S)
        except (ServerAway, UnauthenticatedError, ForbiddenError):
            raise
        except (NotFoundError, SpoolDamagedError, OSError) as error:
            _LOG.warning("reports of an earlier run are left in %s: %s", path, error)

    def _probe(self) -> None:
        unsent = read_unsent(self._path, self._offset)
        if unsent is not None and not unsent.lines:
            self._session.ask(
                "GET",
                f"/api/detcore/v1/trials/{unsent.trial_id}/runs/{unsent.run_id}/spool",
                timeout_s=_TIMEOUT_S,
                num_tries=1,
            )

    def _succeeded(self, asked: int, *, is_all: bool) -> None:
        with self._changed:
            if self._has_told:
                _LOG.info("%s takes reports again", self._session.url)
            self._has_told = False
            self._problem, self._retry_s = None, 0.0
            if not is_all:
                return
            self._answered = self._tried = asked
            self._has_given_up = False
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._asked > asked or self._is_closing, _INTERVAL_S)

    def _failed(self, asked: int, error: Exception) -> None:
        self._reach.lost()
        if isinstance(error, _FINAL):
            self._retry_s = _REFUSED_RETRY_S
        else:
            self._retry_s = min(_LAST_RETRY_S, max(_FIRST_RETRY_S, 2 * self._retry_s))
        # All trials of a server lose it at once; they must not come back at once.
        pause_s = self._retry_s * random.uniform(0.5, 1.0)
        with self._changed:
            if type(error) is not type(self._problem):
                self._has_told = True
                _LOG.warning("%s", _explain(error, self._session.url, self._path))
            self._problem = error
            self._tried = asked
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._asked > asked or self._is_closing, pause_s)


def send_spool(session: Session, path: Path, *, timeout_s: float) -> tuple[int, int]:
    """Send what a server does not know of a spool that is for it.

    Args:
        session: The server.
        path: The spool.
        timeout_s: How long to wait for each answer.

    Returns:
        Bytes up to which the server knew it before, and knows it now; 0 and 0 where it is for
        another one, because a trial of the same number may be another one there.

    Raises:
        ServerAway: If the server did not answer.
        SpoolDamagedError: If the file is not a spool, or shorter than what the server knows.
        DetcoreError: What the server refused it with.
    """
    unsent = read_unsent(path, 0)
    if unsent is None or unsent.server != session.url:
        return 0, 0
    answer: Any = session.ask(
        "GET",
        f"/api/detcore/v1/trials/{unsent.trial_id}/runs/{unsent.run_id}/spool",
        timeout_s=timeout_s,
        num_tries=1,
    )
    known = offset = max(int(answer["offset"]), unsent.first)
    is_all = False
    while not is_all:
        offset, is_all = _send_part(session, path, offset, timeout_s=timeout_s)
    return known, offset


def _spools_before(path: Path) -> list[Path]:
    """Return the spools of a trial's earlier runs, oldest first."""
    mine = spool_owner(path)
    owners = {other: spool_owner(other) for other in path.parent.glob("spool-*.jsonl")}
    found = [(owner[1], other) for other, owner in owners.items() if owner and mine]
    return [other for run_id, other in sorted(found) if mine and run_id < mine[1]]


def _explain(error: Exception, url: str, path: Path) -> str:
    """Return what is said when reports do not get through."""
    kept = f"Reports are kept in {path}; training goes on."
    if isinstance(error, ServerAway):
        return in_one_line(error, kept)
    if isinstance(error, UnauthenticatedError | ForbiddenError):
        return in_one_line(
            f"{url} does not accept the token of this trial (it has expired, or is another's): "
            f"{error}",
            kept,
        )
    if isinstance(error, NotFoundError):
        return in_one_line(f"{url} does not know this trial: {error}", kept)
    if isinstance(error, SpoolDamagedError):
        return in_one_line(f"reports cannot be sent: {error}")
    what = "refuses reports" if isinstance(error, DetcoreError) else "cannot be told of reports"
    return in_one_line(f"{url} {what}: {type(error).__name__}: {error}", kept)
