"""Connection handling that all databases share: timeouts, forks, unreachable servers."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable
from typing import Any, TypeVar

from sqlalchemy import URL, Engine, event
from sqlalchemy.exc import DisconnectionError
from sqlalchemy.pool import ConnectionPoolEntry, PoolProxiedConnection

from detcore.contract.errors import DatabaseError

# Maximum time that a writing transaction waits for another writing transaction.
WAIT_S = 30.0
# Maximum time that a writing transaction waits for a migration, which may copy tables.
MIGRATION_TIMEOUT_S = 600.0
_SECRET = re.compile(r"pass|secret|token|key", re.IGNORECASE)
_T = TypeVar("_T")
_MAX_WAIT_S = 600.0
_INITIAL_BACKOFF_S = 0.1
_MAX_BACKOFF_S = 1.0


def mask_url(url: URL) -> str:
    """Return a URL in which the password and other secrets are replaced by ``***``."""
    query = {name: "***" if _SECRET.search(name) else value for name, value in url.query.items()}
    return url.set(query=query).render_as_string().replace("%2A%2A%2A", "***")


class ForkGuard:
    """Opens new connections in a forked child.

    SQLite connections do not survive a fork. If two processes share a server connection, the
    protocol is corrupted, and closing it in the child would close it for the parent.
    """

    def __init__(self, engine: Engine) -> None:
        """Watch the connections of an engine."""
        self._engine = engine
        self._pid = os.getpid()
        # References to the parent's connections, so that the child does not close them.
        self._abandoned: list[object] = []
        event.listen(engine, "connect", self._on_connect)
        event.listen(engine, "checkout", self._on_checkout)

    def dispose(self) -> None:
        """Close all connections of this process. A child keeps its parent's connections open."""
        if os.getpid() == self._pid:
            self._engine.dispose()
            return
        self._abandoned.append(self._engine.pool)
        self._engine.dispose(close=False)

    def _on_connect(self, _: Any, record: ConnectionPoolEntry) -> None:
        record.info["pid"] = os.getpid()

    def _on_checkout(
        self, connection: Any, record: ConnectionPoolEntry, proxy: PoolProxiedConnection
    ) -> None:
        if record.info["pid"] == os.getpid():
            return
        self._abandoned.append(connection)
        # As SQLAlchemy's documentation does it; its public types do not show these attributes.
        record.dbapi_connection = None  # type: ignore[misc]
        proxy.dbapi_connection = None  # type: ignore[misc]
        raise DisconnectionError("the connection belongs to another process")


class DatabaseUnavailableError(DatabaseError):
    """Raised when the database server is unreachable."""


def call_until_available(
    call: Callable[[], _T],
    *,
    notify: Callable[[str], None],
    should_stop: Callable[[], bool],
) -> _T:
    """Return the result of a call, and repeat the call while the server is unreachable.

    Args:
        call: Called again while it raises `DatabaseUnavailableError`.
        notify: Receives a message when a wait starts and when it ends.
        should_stop: Called between two calls. If it returns True, the error is raised.

    Raises:
        DatabaseUnavailableError: If the server stays unreachable.
    """
    since = time.monotonic()
    pause_s = _INITIAL_BACKOFF_S
    is_waiting = False
    while True:
        try:
            result = call()
        except DatabaseUnavailableError as error:
            if should_stop() or time.monotonic() - since >= _MAX_WAIT_S:
                raise
            if not is_waiting:
                reason = str(error).partition("\n")[0]
                notify(f"waiting up to {_MAX_WAIT_S:.0f} s: {reason}")
                is_waiting = True
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, _MAX_BACKOFF_S)
        else:
            if is_waiting:
                waited_s = time.monotonic() - since
                notify(f"the database is reachable again after {waited_s:.0f} s")
            return result
