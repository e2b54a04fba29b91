"""Everything that is only for SQLite. Nowhere else is there SQL that other databases lack."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import time
from pathlib import Path

from sqlalchemy import URL, Connection

from detcore.contract.errors import DatabaseError, StorageFullError
from detcore.records.connections import MIGRATION_TIMEOUT_S, WAIT_S, mask_url

_RETRY_S = 0.02
# The write-ahead log is cut to this where a migration made it long.
_LOG_BYTES = 16 * 1024 * 1024
_DAMAGE = ("not a database", "malformed", "file is encrypted", "could not decode")


def prepare_file(url: URL) -> bool:
    """Create the folder of the file, and return whether the file may be written.

    Raises:
        DatabaseError: If the database is in memory, or cannot be created.
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
        # Records, event logs and checkpoints below it are private to this user.
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        reason = error.strerror or str(error)
        if isinstance(error, FileExistsError):
            place = next(each for each in (path.parent, *path.parents) if os.path.lexists(each))
            reason = f"{place} is not a directory"
            if place.is_symlink() and not place.exists():
                reason = f"{place} is a symbolic link to {os.readlink(place)}, which is missing"
        raise DatabaseError(
            f"cannot create the directory of the database {path}: {reason}.\n"
            "Set DETCORE_HOME (or DETCORE_DB) to a place that you may write to."
        ) from error
    if path.is_dir():
        raise DatabaseError(
            f"the database {path} is a folder.\nGive a file: sqlite:///{path}/detcore.db"
        )
    # SQLite writes two more files beside the database.
    blocked = [place for place in (path, path.parent) if place.exists() and not _writable(place)]
    if blocked and not path.exists():
        raise DatabaseError(
            f"the database {path} cannot be created: {blocked[0]} is read-only.\n"
            "Change its permissions, or set DETCORE_HOME (or DETCORE_DB) to another place."
        )
    if not path.exists():
        with contextlib.suppress(OSError):  # another process was faster, or SQLite will tell
            # Only for this user, because experiment files may hold credentials. SQLite gives the
            # two files beside it the same mode.
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
    return not blocked


def connect_read_only(url: URL) -> sqlite3.Connection:
    """Connect to a database that may not be written, such as a copy on a read-only disk.

    Raises:
        DatabaseError: If SQLite would have to create a file.
    """
    path = Path(str(url.database)).absolute()
    log, index = (path.with_name(f"{path.name}-{end}") for end in ("wal", "shm"))
    # Without a log SQLite needs no other files if it is told that the database does not change.
    has_log = log.exists() and log.stat().st_size > 0
    if has_log and not index.exists():
        raise DatabaseError(
            f"the database {mask_url(url)} cannot be read: {path.parent} is read-only, the newest "
            f"records are in {log.name}, and SQLite cannot create {index.name} to read these.\n"
            "Copy the directory to a place that you can write to, and set DETCORE_HOME to it: "
            f"cp -r {path.parent} COPY"
        )
    options = "mode=ro" if has_log else "immutable=1"
    return sqlite3.connect(
        f"{path.as_uri()}?{options}", uri=True, timeout=WAIT_S, check_same_thread=False
    )


def on_connect_read_only(connection: sqlite3.Connection, _: object) -> None:
    """Set up a connection that only reads."""
    connection.isolation_level = None
    connection.execute("PRAGMA query_only = ON")


def _writable(place: Path) -> bool:
    return os.access(place, os.W_OK)


def on_connect(connection: sqlite3.Connection, _: object) -> None:
    """Set up a connection: WAL, foreign keys."""
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


def begin(connection: Connection, *, write: bool, migrates: bool) -> None:
    """Begin a transaction; one that writes waits for others first."""
    if migrates:  # the migration discards the connection afterwards
        connection.exec_driver_sql(f"PRAGMA busy_timeout = {int(MIGRATION_TIMEOUT_S * 1000)}")
    connection.exec_driver_sql("BEGIN IMMEDIATE" if write else "BEGIN")


def damaged(url: URL, reason: str) -> DatabaseError:
    """Return the error for a file that is no whole SQLite database."""
    return DatabaseError(
        f"the database {mask_url(url)} is damaged or not a database: {reason}.\n"
        "Its records cannot be read; checkpoints are elsewhere and are not affected.\n"
        f"Restore the file from a backup, or move it away to start a new one: "
        f"mv {url.database} {url.database}.damaged"
    )


def explain(reason: str, url: URL) -> Exception | None:
    """Return detcore's error for one of SQLite's, or None if it is not a special one."""
    low = reason.lower()
    where = mask_url(url)
    if "disk is full" in low or "no space" in low:
        return StorageFullError(
            f"no room for records: {where}: {reason}.\n"
            "What was reported stays in the event log of its trial and is taken in later.\n"
            "Free some space, then go on."
        )
    if "locked" in low:
        return DatabaseError(
            f"the database {where} was locked by another process for {WAIT_S:.0f} s: {reason}.\n"
            "A process holds a write transaction open, or the file is on a network file system.\n"
            f"Find it with: lsof {url.database}"
        )
    if any(words in low for words in _DAMAGE):
        return damaged(url, reason)
    if any(words in low for words in ("no such column", "has no column", "no such table")):
        return DatabaseError(
            f"the database {where} was made by a development version of detcore: {reason}.\n"
            "Only the tables of releases are brought up to date.\n"
            f"Move it away to start a new one: mv {url.database} {url.database}.old"
        )
    if "readonly" in low or "read-only" in low or "unable to open" in low:
        return DatabaseError(
            f"the database {where} cannot be opened or written: {reason}.\n"
            "Records in a read-only place can be read, but not changed. "
            "Change its permissions, or set DETCORE_HOME (or DETCORE_DB) to another place."
        )
    return None
