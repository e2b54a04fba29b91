"""Everything that is only for SQLite. Nowhere else is there SQL that other databases lack."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import time
from pathlib import Path
from typing import Any

from sqlalchemy import URL, Connection, Engine, event

from detcore.contract.errors import DatabaseError
from detcore.database._connections import MIGRATES, MIGRATION_TIMEOUT_S, WAIT_S, WRITE

__all__ = ["connect_arguments", "prepare_engine", "prepare_file"]

_RETRY_S = 0.02
# The write-ahead log is cut to this where a migration made it long.
_LOG_BYTES = 16 * 1024 * 1024


def connect_arguments() -> dict[str, Any]:
    """Return the arguments of `sqlite3.connect`, except the file."""
    return {"timeout": WAIT_S}


def prepare_file(url: URL) -> None:
    """Create the folder of the file, and see that the file may be written.

    Raises:
        DatabaseError: If the database is in memory, or may not be written.
    """
    name = url.database
    if not name or name == ":memory:" or name.startswith("file:"):
        raise DatabaseError(
            f"the database {url.render_as_string()} is not a file of its own.\n"
            "Several processes share the records, so they cannot be in one process's memory.\n"
            "Give a file: sqlite:////absolute/path/detcore.db"
        )
    path = Path(name).absolute()
    try:
        # Records, spools and checkpoints below it are private to this user.
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise DatabaseError(
            f"cannot create the folder of the database {path}: {error.strerror or error}.\n"
            "Set DETCORE_HOME (or DETCORE_DB) to a place that you may write to."
        ) from error
    if path.is_dir():
        raise DatabaseError(
            f"the database {path} is a folder.\nGive a file: sqlite:///{path}/detcore.db"
        )
    # SQLite writes two more files beside the database, even to read from it.
    blocked = [place for place in (path, path.parent) if place.exists() and not _writable(place)]
    if blocked:
        raise DatabaseError(
            f"the database {path} is read-only: {blocked[0]} may not be written.\n"
            "Records are read and written by all commands, so it must be writable.\n"
            "Change its permissions, or set DETCORE_HOME (or DETCORE_DB) to another place."
        )
    if not path.exists():
        with contextlib.suppress(OSError):  # another process was faster, or SQLite will tell
            # Only for this user, because experiment files may hold credentials. SQLite gives the
            # two files beside it the same mode.
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))


def _writable(place: Path) -> bool:
    return os.access(place, os.W_OK)


def prepare_engine(engine: Engine) -> None:
    """Set up every connection and transaction: WAL, foreign keys, our own BEGIN."""
    event.listen(engine, "connect", _on_connect)
    event.listen(engine, "begin", _on_begin)


def _on_connect(connection: sqlite3.Connection, _: object) -> None:
    # The driver must not begin transactions by itself: it would begin them as readers, and one
    # that turns into a writer may fail at once, whatever the timeout.
    connection.isolation_level = None
    _set_wal(connection)
    connection.execute("PRAGMA synchronous = NORMAL")
    connection.execute("PRAGMA foreign_keys = ON")
    connection.execute(f"PRAGMA journal_size_limit = {_LOG_BYTES}")


def _set_wal(connection: sqlite3.Connection) -> None:
    """Switch to write-ahead logging; SQLite does not wait by itself where several do so."""
    deadline = time.monotonic() + WAIT_S
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() >= deadline:
                raise
        time.sleep(_RETRY_S)


def _on_begin(connection: Connection) -> None:
    options = connection.get_execution_options()
    if not options.get(WRITE):
        connection.exec_driver_sql("BEGIN")
        return
    if options.get(MIGRATES):  # the migration discards the connection afterwards
        connection.exec_driver_sql(f"PRAGMA busy_timeout = {int(MIGRATION_TIMEOUT_S * 1000)}")
    connection.exec_driver_sql("BEGIN IMMEDIATE")
