"""Engines and transactions."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote

from sqlalchemy import URL, Connection, Engine, create_engine, make_url
from sqlalchemy.exc import (
    ArgumentError,
    DBAPIError,
    IntegrityError,
    NoSuchModuleError,
)
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from detcore.database import _postgresql, _sqlite
from detcore.database._connections import MIGRATES, WRITE, ForkGuard
from detcore.database._home import set_home
from detcore.database._translate import damaged, shown_url, translate
from detcore.errors import DatabaseError

__all__ = ["make_engine", "transaction"]

# Connections of a process: a worker needs two, a command one; servers have about 100.
_POOL = {"pool_size": 2, "max_overflow": 8, "pool_pre_ping": True}


def make_engine(url: str) -> tuple[Engine, ForkGuard]:
    """Return an engine for a URL; nothing is opened yet, but SQLite's folder is made.

    Raises:
        DatabaseError: If the URL cannot be used, or its driver is not installed.
    """
    try:
        parsed = _postgresql.normal_url(make_url(url))
    except ArgumentError:
        # Its reason may hold the URL, and with it the password.
        raise _unusable(_hidden(url), "it is not a URL") from None
    backend = parsed.get_backend_name()
    if backend not in ("sqlite", "postgresql"):
        raise _unusable(shown_url(parsed), f"detcore knows SQLite and PostgreSQL, not {backend}")
    try:
        if backend == "sqlite":
            parsed = parsed.set(database=_file_of(url))
            _sqlite.prepare_file(parsed)
            engine = create_engine(parsed, connect_args=_sqlite.connect_arguments())
            _sqlite.prepare_engine(engine)
            set_home(engine, Path(str(parsed.database)).absolute().parent)
        else:
            arguments = _postgresql.connect_arguments(parsed)
            engine = create_engine(parsed, connect_args=arguments, **_POOL)
            _postgresql.prepare_engine(engine)
    except (ArgumentError, NoSuchModuleError) as error:
        raise _unusable(shown_url(parsed), str(error)) from None
    except ModuleNotFoundError as error:
        raise DatabaseError(_missing_driver(parsed, error)) from error
    return engine, ForkGuard(engine)


@contextlib.contextmanager
def transaction(
    engine: Engine, *, write: bool = False, migrates: bool = False
) -> Iterator[Connection]:
    """Run a block in a transaction; one that reads sees one moment of the database.

    Args:
        engine: Where.
        write: Whether the block writes; such blocks wait for each other at their beginning.
        migrates: Whether it changes tables, which may take long.

    Raises:
        StorageFullError: If there is no room left.
        DatabaseError: If the database cannot be used, or holds text that is none.
    """
    options = {name: True for name, on in ((WRITE, write), (MIGRATES, migrates)) if on}
    try:
        with engine.connect() as connection:
            chosen = connection.execution_options(**options)
            with chosen.begin():
                yield chosen
    except IntegrityError:
        raise  # the caller knows which of its values is wrong
    except DBAPIError as error:
        raise translate(error, engine.url) from error
    except UnicodeDecodeError as error:
        raise damaged(engine.url, str(error)) from error
    except PoolTimeoutError as error:
        raise DatabaseError(
            f"no connection to {shown_url(engine.url)} became free: {error}.\n"
            "Too many threads of this process use it at once."
        ) from error
    except OverflowError as error:
        raise DatabaseError(
            f"a number is too large for the records in {shown_url(engine.url)}: {error}.\n"
            "Whole numbers in records have 64 bits."
        ) from error


def _file_of(url: str) -> str:
    """Return the file of an SQLite URL; SQLAlchemy decodes percent escapes only from 2.1 on."""
    return unquote(url.partition(":///")[2].partition("?")[0])


def _unusable(url: str, reason: str) -> DatabaseError:
    return DatabaseError(
        f"the database URL {url!r} cannot be used: {reason}.\n"
        "Set DETCORE_DB to something like sqlite:////home/me/detcore.db or "
        "postgresql+psycopg://user@host/detcore, or unset it."
    )


def _missing_driver(url: URL, error: ModuleNotFoundError) -> str:
    usual = url.get_driver_name() == "psycopg"
    package = "'detcore[postgresql]'" if usual else error.name
    return (
        f"the database {shown_url(url)} needs the Python package {error.name!r}, which is not "
        f"installed.\nInstall it: python -m pip install {package}"
    )


def _hidden(url: str) -> str:
    """Return a URL that could not be parsed, without what may be a password."""
    head, at, tail = url.rpartition("@")
    scheme = head.partition("://")[0] + "://" if "://" in head else ""
    return f"{scheme}***@{tail.partition('?')[0]}" if at else url.partition("?")[0]
