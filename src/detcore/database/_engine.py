"""Connections and transactions, and what their errors become."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from sqlalchemy import URL, Connection, Engine, create_engine, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, IntegrityError, NoSuchModuleError

from detcore.database import _sqlite
from detcore.errors import DatabaseError, StorageFullError

__all__ = ["make_engine", "transaction", "translate"]


def make_engine(url: str) -> Engine:
    """Return an engine for a URL; nothing is opened yet, but SQLite's folder is made.

    Raises:
        DatabaseError: If the URL cannot be used, or its driver is not installed.
    """
    try:
        parsed = make_url(url)
        if parsed.get_backend_name() != "sqlite":
            return create_engine(parsed, pool_pre_ping=True)
    except (ArgumentError, NoSuchModuleError) as error:
        # The reason of an ArgumentError may hold the URL, and with it the password.
        reason = error if isinstance(error, NoSuchModuleError) else "it is not a URL"
        raise DatabaseError(
            f"the database URL {_hidden(url)!r} cannot be used: {reason}.\n"
            "Set DETCORE_DB to something like sqlite:////home/me/detcore.db, or unset it."
        ) from error
    except ModuleNotFoundError as error:
        raise DatabaseError(
            f"the database {parsed.render_as_string()} needs the Python package {error.name!r}, "
            f"which is not installed.\nInstall it: python -m pip install {error.name}"
        ) from error
    _sqlite.prepare_file(parsed)
    engine = create_engine(parsed, connect_args=_sqlite.connect_arguments())
    _sqlite.prepare_engine(engine)
    return engine


@contextlib.contextmanager
def transaction(engine: Engine, *, write: bool = False) -> Iterator[Connection]:
    """Run a block in a transaction.

    Args:
        engine: Where.
        write: Whether the block writes; such blocks wait for each other at their beginning.

    Raises:
        StorageFullError: If there is no room left.
        DatabaseError: If the database cannot be used.
    """
    try:
        with engine.connect() as connection:
            chosen = connection.execution_options(**{_sqlite.WRITE: True}) if write else connection
            with chosen.begin():
                yield chosen
    except IntegrityError:
        raise  # the caller knows which of its values is wrong
    except DBAPIError as error:
        raise translate(error, engine.url) from error


def translate(error: DBAPIError, url: URL) -> Exception:
    """Return detcore's error for one of the database's."""
    reason = str(error.orig).strip()
    low = reason.lower()
    where = url.render_as_string()
    if "disk is full" in low or "no space" in low:
        return StorageFullError(
            f"no room for records: {where}: {reason}.\n"
            "What was reported stays in the spool of its trial and is taken in later.\n"
            "Free some space, then go on."
        )
    if "locked" in low:
        return DatabaseError(
            f"the database {where} was locked by another process for "
            f"{_sqlite.BUSY_TIMEOUT_S:.0f} s: {reason}.\n"
            "A process holds a write transaction open, or the file is on a network file system.\n"
            f"Find it with: lsof {url.database}"
        )
    if "not a database" in low or "malformed" in low or "file is encrypted" in low:
        return DatabaseError(
            f"the database {where} is damaged or not a database: {reason}.\n"
            "Its records cannot be read; checkpoints are elsewhere and are not affected.\n"
            f"Restore the file from a backup, or move it away to start a new one: "
            f"mv {url.database} {url.database}.damaged"
        )
    if "readonly" in low or "read-only" in low or "unable to open" in low:
        return DatabaseError(
            f"the database {where} cannot be opened or written: {reason}.\n"
            "Change its permissions, or set DETCORE_HOME (or DETCORE_DB) to another place."
        )
    if "connection" in low:
        return DatabaseError(
            f"the database server of {where} cannot be reached: {reason}\n"
            "Records are kept there because DETCORE_DB says so.\n"
            "Start the server or correct the URL; what was reported meanwhile is taken in later."
        )
    return DatabaseError(f"the database {where} refused a statement: {reason}")


def _hidden(url: str) -> str:
    """Return a URL that could not be parsed, without what may be a password."""
    head, at, tail = url.rpartition("@")
    scheme = head.partition("://")[0] + "://" if "://" in head else ""
    return f"{scheme}***@{tail}" if at else url
