"""Back up, inspect and restore the record store while it is in use.

The SQLite backup API copies a consistent state, including the write-ahead log, which a file copy
would miss.
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
# Table in which Alembic stores the schema version.
_VERSION = "alembic_version"
_WAIT_S = 30.0


def describe_database(url: str) -> dict[str, Any]:
    """Describe a record store of any schema version, without changing it.

    Returns:
        ``url`` with masked secrets, ``schema`` (the schema version, or None for an empty database),
        ``newest_schema`` (the version after opening it), and ``counts`` (rows by table).

    Raises:
        DatabaseError: If the database cannot be read.
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
            f"cannot read the database {mask_url(parsed)}: {getattr(error, 'orig', error)}"
        ) from error
    finally:
        guard.dispose()
    return {**info, "schema": schema, "counts": counts}


def back_up(url: str, target: Path) -> int:
    """Copy a consistent state of a record store to a new file, even while it is written.

    The file appears only after the copy is complete, checked and flushed to disk.

    Args:
        url: URL of the SQLite record store.
        target: Path of the new file.

    Returns:
        Size of the file in bytes.

    Raises:
        ConfigError: If `target` exists, or the database is not SQLite.
        DatabaseError: If the database does not exist or is damaged.
        StorageFullError: If there is no space.
    """
    source = _find_file(url)
    if not source.exists():
        raise DatabaseError(f"the database {source} does not exist")
    target = target.absolute()
    if os.path.lexists(target):
        raise _exists_already(target)
    try:
        # The directory is private, because a copy contains experiment files and password hashes.
        with tempfile.TemporaryDirectory(prefix=f".{target.name}.", dir=target.parent) as folder:
            copy = Path(folder, "copy")
            with _translate_errors(source, target):
                _copy_file(source, copy)
                _check_file(copy)
                _make_single(copy)
            copy.chmod(0o600)
            sync_path(copy)
            os.link(copy, target)  # unlike a rename, a link does not replace an existing file
    except StorageFullError:
        raise
    except FileExistsError as error:
        raise _exists_already(target) from error
    except OSError as error:
        raise ConfigError(
            f"cannot write the backup {target}: {error.strerror}.\n"
            "Choose a file in a directory where you may write."
        ) from error
    sync_path(target.parent)
    return target.stat().st_size


def _exists_already(target: Path) -> ConfigError:
    return ConfigError(f"{target} already exists.\nChoose another file, or move it away.")


def restore_backup(source: Path, url: str, *, replace: bool = False) -> None:
    """Replace the record store by a backup from `back_up`.

    The replacement is one transaction: after a crash the database contains the old or the new
    records. Stop servers and runs first. Records written since the backup are lost.

    Args:
        source: Path of the backup.
        url: URL of the SQLite record store.
        replace: Whether an existing database may be replaced.

    Raises:
        ConfigError: If a database exists and `replace` is False, or the database is not SQLite.
        DatabaseError: If the backup is damaged or is not a record store.
    """
    source, target = source.absolute(), _find_file(url)
    if not source.is_file():
        raise ConfigError(f"the file {source} does not exist")
    if target.exists() and not replace:
        raise ConfigError(
            f"the database {target} already exists, and its records would be lost.\n"
            "Back it up if you need the records: detcore database backup FILE\n"
            "Then repeat the command with --replace."
        )
    with _translate_errors(source, target):
        _check_file(source)
        target.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            os.close(os.open(target, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
        # Only SQLite may open the file: closing another descriptor would drop this process's locks,
        # and other processes could remove the log under its connections.
        _copy_file(source, target)


def _find_file(url: str) -> Path:
    parsed = make_url(url)
    if parsed.get_backend_name() != "sqlite":
        raise ConfigError(
            f"the record store {mask_url(parsed)} is not a file.\n"
            "Back up and restore a PostgreSQL database with pg_dump and pg_restore."
        )
    return Path(parsed.database or "").absolute()


@contextlib.contextmanager
def _translate_errors(source: Path, target: Path) -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as error:
        if "full" in str(error):
            raise StorageFullError(f"no space to copy {source} to {target}: {error}") from error
        raise DatabaseError(f"cannot copy {source} to {target}: {error}") from error


@contextlib.contextmanager
def _connect(path: Path, mode: str) -> Iterator[sqlite3.Connection]:
    link = sqlite3.connect(
        f"{path.as_uri()}?mode={mode}", uri=True, timeout=_WAIT_S, isolation_level=None
    )
    with contextlib.closing(link) as connection:
        yield connection


def _copy_file(source: Path, target: Path) -> None:
    """Copy a consistent state, even while other processes write."""
    with _connect(source, "ro") as reading, _connect(target, "rwc") as writing:
        writing.execute("PRAGMA synchronous = FULL")
        # One step, because a copy in several steps restarts at every write of another process.
        reading.backup(writing, pages=-1)


def _check_file(path: Path) -> None:
    """Check that a file is a complete record store."""
    with _connect(path, "ro") as connection:
        messages = connection.execute("PRAGMA integrity_check(3)").fetchall()
        if messages != [("ok",)]:
            raise DatabaseError(
                f"the database {path} is damaged: {'; '.join(row[0] for row in messages)}"
            )
        num_tables = connection.execute(
            "SELECT count(*) FROM sqlite_master WHERE name IN ('alembic_version', 'experiments')"
        ).fetchone()
        if num_tables != (2,):
            raise DatabaseError(f"{path} is not a detcore record store: its tables are missing")


def _make_single(path: Path) -> None:
    """Turn off the write-ahead log, so that the backup is a single file."""
    with _connect(path, "rw") as connection:
        connection.execute("PRAGMA journal_mode = DELETE")
