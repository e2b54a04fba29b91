"""Settings and a fork guard that the connections to every database share."""

from __future__ import annotations

import os
from typing import Any

from sqlalchemy import Engine, event
from sqlalchemy.exc import DisconnectionError
from sqlalchemy.pool import ConnectionPoolEntry, PoolProxiedConnection

__all__ = ["MIGRATES", "MIGRATION_TIMEOUT_S", "WAIT_S", "WRITE", "ForkGuard"]

# How long a writer waits for another one.
WAIT_S = 30.0
# How long it waits for one that migrates, which copies tables.
MIGRATION_TIMEOUT_S = 600.0
# Execution options of connections: their transaction writes; it is the one that migrates.
WRITE = "detcore_write"
MIGRATES = "detcore_migrates"


class ForkGuard:
    """Gives a forked child its own connections.

    SQLite's do not survive a fork, and a server's connection that two processes use is garbled;
    closing it in the child would end the parent's.
    """

    def __init__(self, engine: Engine) -> None:
        """Watch the connections of an engine."""
        self._engine = engine
        self._pid = os.getpid()
        # Kept, so that they are not closed in the child.
        self._abandoned: list[object] = []
        event.listen(engine, "connect", self._on_connect)
        event.listen(engine, "checkout", self._on_checkout)

    def dispose(self) -> None:
        """Close all connections; in a child, leave those of its parent alone."""
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
