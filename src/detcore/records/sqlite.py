"""SQLite's files, connections and errors. All SQL that only SQLite has is in this module."""

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
# SQLite truncates the write-ahead log to this size after a large migration.
_LOG_BYTES = 16 * 1024 * 1024
_DAMAGE = ("not a database", "malformed", "file is encrypted", "could not decode")


def prepare_file(url: URL) -> bool:
    """Create the directory of the file, and return whether the file is writable.

    Raises:
        DatabaseError: If the database is in memory, or cannot be created.
    """
    name = url.database
    if not name or name == ":memory:" or name.startswith("file:"):
        raise DatabaseError(
            f"the database {url.render_as_string()} is not a file.\n"
            "Several processes share the records, so the database cannot be in memory.\n"
            "Use a file: sqlite:////absolute/path/detcore.db"
        )
    path = Path(name).absolute()
    try:
        # The directory contains records, event logs and checkpoints, which are private.
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        reason = error.strerror or str(error)
        if isinstance(error, FileExistsError):
            place = next(parent for parent in path.parents if os.path.lexists(parent))
            reason = f"{place} is not a directory"
            if place.is_symlink() and not place.exists():
                reason = f"{place} is a symbolic link to {os.readlink(place)}, which is missing"
        raise DatabaseError(
            f"cannot create the directory of the database {path}: {reason}.\n"
            "Set DETCORE_HOME to a writable directory, or DETCORE_DB to the URL of a database."
        ) from error
    if path.is_dir():
        raise DatabaseError(
            f"the database {path} is a directory.\nUse a file: sqlite:///{path}/detcore.db"
        )
    # SQLite writes two more files next to the database.
    blocked = [place for place in (path, path.parent) if place.exists() and not _is_writable(place)]
    if blocked and not path.exists():
        raise DatabaseError(
            f"the database {path} cannot be created: {blocked[0]} is read-only.\n"
            "Change its permissions, set DETCORE_HOME to a writable directory, or DETCORE_DB to "
            "the URL of a database."
        )
    if not path.exists():
        with contextlib.suppress(OSError):  # another process was faster, or SQLite reports it
            # Only this user may read the file, because experiment files may contain credentials.
            # SQLite gives its two other files the same mode.
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
    return not blocked


def connect_read_only(url: URL) -> sqlite3.Connection:
    """Connect to a database that is not writable, such as a copy on a read-only disk.

    Raises:
        DatabaseError: If SQLite would have to create a file.
    """
    path = Path(str(url.database)).absolute()
    log, index = (path.with_name(f"{path.name}-{end}") for end in ("wal", "shm"))
    # Without a log, and with the option immutable, SQLite needs no other files.
    has_log = log.exists() and log.stat().st_size > 0
    if has_log and not index.exists():
        raise DatabaseError(
            f"the database {mask_url(url)} cannot be read: {path.parent} is read-only, the newest "
            f"records are in {log.name}, and SQLite cannot create {index.name} to read them.\n"
            "Copy the directory to a writable place, and set DETCORE_HOME to the copy: "
            f"cp -r {path.parent} COPY"
        )
    options = "mode=ro" if has_log else "immutable=1"
    return sqlite3.connect(
        f"{path.as_uri()}?{options}", uri=True, timeout=WAIT_S, check_same_thread=False
    )


def on_connect_read_only(connection: sqlite3.Connection, _: object) -> None:
    """Set up a read-only connection."""
    connection.isolation_level = None
    connection.execute("PRAGMA query_only = ON")


def _is_writable(place: Path) -> bool:
    return os.access(place, os.W_OK)


def on_connect(connection: sqlite3.Connection, _: object) -> None:
    """Set up a connection: write-ahead log, foreign keys."""
    # The driver must not start transactions. It would start them as reading transactions, and
    # SQLite may refuse to upgrade such a transaction immediately, regardless of the timeout.
    connection.isolation_level = None
    _set_wal(connection)
    connection.execute("PRAGMA synchronous = NORMAL")
    connection.execute("PRAGMA foreign_keys = ON")
    connection.execute(f"PRAGMA journal_size_limit = {_LOG_BYTES}")


def _set_wal(connection: sqlite3.Connection) -> None:
    """Switch to write-ahead logging. SQLite does not wait if several connections do so."""
    deadline = time.monotonic() + WAIT_S
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() >= deadline:
                raise
        time.sleep(_RETRY_S)


def begin_transaction(connection: Connection, *, write: bool, migrates: bool) -> None:
    """Start a transaction. A writing transaction first waits for other writers."""
    if migrates:  # the caller discards the connection after the migration
        connection.exec_driver_sql(f"PRAGMA busy_timeout = {int(MIGRATION_TIMEOUT_S * 1000)}")
    connection.exec_driver_sql("BEGIN IMMEDIATE" if write else "BEGIN")


def make_damage_error(url: URL, reason: str) -> DatabaseError:
    """Return the error for a damaged database file."""
    return DatabaseError(
        f"the database {mask_url(url)} is damaged or not a database: {reason}.\n"
        "Its records cannot be read. Checkpoints are stored elsewhere and are not affected.\n"
        f"Restore the file from a backup, or rename it to start with an empty database: "
        f"mv {url.database} {url.database}.damaged"
    )


def make_error(reason: str, url: URL) -> Exception | None:
    """Return detcore's error for an error of SQLite, or None for an unknown error."""
    low = reason.lower()
    where = mask_url(url)
    if "disk is full" in low or "no space" in low:
        return StorageFullError(
            f"no space left for records in {where}: {reason}.\n"
            "Reports stay in the event logs of their trials and are ingested later.\n"
            "Free some space, then try again."
        )
    if "locked" in low:
        return DatabaseError(
            f"the database {where} was locked by another process for {WAIT_S:.0f} s: {reason}.\n"
            "A process holds a write transaction open, or the file is on a network file system.\n"
            f"Find the process with: lsof {url.database}"
        )
    if any(words in low for words in _DAMAGE):
        return make_damage_error(url, reason)
    if any(words in low for words in ("no such column", "has no column", "no such table")):
        return DatabaseError(
            f"the database {where} was created by a development version of detcore: {reason}.\n"
            "Only databases of releases can be migrated.\n"
            "Rename the file to start with an empty database: "
            f"mv {url.database} {url.database}.old"
        )
    if "readonly" in low or "read-only" in low or "unable to open" in low:
        return DatabaseError(
            f"the database {where} cannot be opened or written: {reason}.\n"
            "Records in a read-only directory can be read, but not changed. "
            "Change its permissions, set DETCORE_HOME to a writable directory, or DETCORE_DB to "
            "the URL of a database."
        )
    return None
