"""Copies of the record store: made while it is written, looked at, and put back.

Uses SQLite's backup API: it copies the data committed at one moment, including the write-ahead
log, which copying the file would miss.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sqlalchemy import inspect, make_url, text
from sqlalchemy.exc import SQLAlchemyError

from detcore.errors import ConfigError, DatabaseError, StorageFullError
from detcore.records import list_revisions, make_engine, mask_url
from detcore_server.jobs.unpack import sync_path

_TABLES = ("experiments", "trials", "checkpoints", "models", "users")
# Where Alembic keeps the version of the tables.
_VERSION = "alembic_version"
_WAIT_S = 30.0


def describe_database(url: str) -> dict[str, Any]:
    """Return facts about a record store, as old as it may be, and change nothing.

    Returns:
        ``url`` (its secrets are shown as ``***``); ``schema``, the version of its tables, None if
        it has none yet; ``newest_schema``, the version that it has once it is opened; ``counts``,
        rows of some tables by name.

    Raises:
        DatabaseError: If it cannot be read.
    """
    parsed = make_url(url)
    info = {"url": mask_url(parsed), "newest_schema": list_revisions()[-1]}
    if parsed.get_backend_name() == "sqlite" and not Path(parsed.database or "").exists():
        return {**info, "schema": None, "counts": {}}
    engine, guard = make_engine(url)
    try:
        with engine.connect() as connection:
            names = inspect(connection).get_table_names()
            counts = {
                name: int(connection.execute(text(f"SELECT count(*) FROM {name}")).scalar_one())
                for name in _TABLES
                if name in names
            }
            schema = None
            if _VERSION in names:
                schema = str(connection.scalar(text(f"SELECT version_num FROM {_VERSION}")))
    except (SQLAlchemyError, UnicodeDecodeError) as error:
        raise DatabaseError(
            f"the database {mask_url(parsed)} cannot be read: {getattr(error, 'orig', error)}"
        ) from error
    finally:
        guard.dispose()
    return {**info, "schema": schema, "counts": counts}


def back_up(url: str, target: Path) -> int:
    """Copy a record store, as it is at one moment, to a new file; others may keep writing.

    The file is there once the copy is whole, checked, and on the disk.

    Args:
        url: The record store; SQLite.
        target: The file; there must be none.

    Returns:
        Its size in bytes.

    Raises:
        ConfigError: If `target` exists, or the database is not SQLite; others have their own tools.
        DatabaseError: If there is no such database, or it is damaged.
        StorageFullError: If there is no room.
    """
    source = _file_of(url)
    if not source.exists():
        raise DatabaseError(f"there is no database {source}, so there is nothing to copy")
    target = target.absolute()
    if os.path.lexists(target):
        raise _exists_already(target)
    try:
        # In a folder for this user alone: experiment files and hashes of passwords are in a copy.
        with tempfile.TemporaryDirectory(prefix=f".{target.name}.", dir=target.parent) as folder:
            copy = Path(folder, "copy")
            with _translated(source, target):
                _copy_file(source, copy)
                _check_file(copy)
                _make_single(copy)
            copy.chmod(0o600)
            sync_path(copy)
            os.link(copy, target)  # unlike renaming, it replaces nothing
    except StorageFullError:
        raise
    except FileExistsError as error:
        raise _exists_already(target) from error
    except OSError as error:
        raise ConfigError(
            f"the copy {target} cannot be written: {error.strerror}.\n"
            "Name a file where this user may write."
        ) from error
    sync_path(target.parent)
    return target.stat().st_size


def _exists_already(target: Path) -> ConfigError:
    return ConfigError(f"{target} is there already.\nName another file, or move it away.")


def put_back(source: Path, url: str, *, replace: bool = False) -> None:
    """Make a copy from `back_up` the record store.

    It is one transaction: after a crash the old records are there, or the new ones. No server and
    no run should use the database meanwhile: records written since the copy are lost.

    Args:
        source: The copy.
        url: The record store; SQLite.
        replace: Whether it may replace a database that is there.

    Raises:
        ConfigError: If there is a database and `replace` is False, or it is not SQLite.
        DatabaseError: If the copy is damaged, or no record store.
    """
    source, target = source.absolute(), _file_of(url)
    if not source.is_file():
        raise ConfigError(f"there is no file {source} to restore from")
    if target.exists() and not replace:
        raise ConfigError(
            f"there is a database {target} already, whose records would be lost.\n"
            "Copy it with 'detcore database backup' if they matter, then repeat with --replace."
        )
    with _translated(source, target):
        _check_file(source)
        target.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            os.close(os.open(target, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
        # Nothing but SQLite may open the file: closing it would drop the locks that this process
        # has on it, and others would take away the log under its connections.
        _copy_file(source, target)


def _file_of(url: str) -> Path:
    parsed = make_url(url)
    if parsed.get_backend_name() != "sqlite":
        raise ConfigError(
            f"the record store {mask_url(parsed)} is no file.\n"
            "PostgreSQL copies and restores its databases itself, also while they are written: "
            "pg_dump and pg_restore."
        )
    return Path(parsed.database or "").absolute()


@contextlib.contextmanager
def _translated(source: Path, target: Path) -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as error:
        if "full" in str(error):
            raise StorageFullError(
                f"no room for the copy of {source} at {target}: {error}"
            ) from error
        raise DatabaseError(f"{source} cannot be copied to {target}: {error}") from error


@contextlib.contextmanager
def _connected(path: Path, mode: str) -> Iterator[sqlite3.Connection]:
    link = sqlite3.connect(
        f"{path.as_uri()}?mode={mode}", uri=True, timeout=_WAIT_S, isolation_level=None
    )
    with contextlib.closing(link) as connection:
        yield connection


def _copy_file(source: Path, target: Path) -> None:
    """Copy the data committed at one moment, even while other processes write."""
    with _connected(source, "ro") as reading, _connected(target, "rwc") as writing:
        writing.execute("PRAGMA synchronous = FULL")
        # In one step: in several it restarts whenever another process writes, perhaps forever.
        reading.backup(writing, pages=-1)


def _check_file(path: Path) -> None:
    """Raise unless a file is a whole record store."""
    with _connected(path, "ro") as connection:
        said = connection.execute("PRAGMA integrity_check(3)").fetchall()
        if said != [("ok",)]:
            raise DatabaseError(
                f"the database {path} is damaged: {'; '.join(row[0] for row in said)}"
            )
        known = connection.execute(
            "SELECT count(*) FROM sqlite_master WHERE name IN ('alembic_version', 'experiments')"
        ).fetchone()
        if known != (2,):
            raise DatabaseError(f"{path} is no record store of detcore: its tables are missing")


def _make_single(path: Path) -> None:
    """Let a copy be one file, that can be moved and read alone; opening it later undoes this."""
    with _connected(path, "rw") as connection:
        connection.execute("PRAGMA journal_mode = DELETE")
