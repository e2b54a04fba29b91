"""Engines, transactions, and bringing a database up to date."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote

from sqlalchemy import URL, Connection, Engine, create_engine, inspect, make_url, text
from sqlalchemy.exc import (
    ArgumentError,
    DBAPIError,
    IntegrityError,
    NoSuchModuleError,
    OperationalError,
    ProgrammingError,
)
from sqlalchemy.exc import DatabaseError as SQLDatabaseError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from detcore.database import _postgresql, _sqlite
from detcore.database._connections import MIGRATES, WRITE, ForkGuard
from detcore.database._home import set_home
from detcore.database._schema import REVISIONS
from detcore.database._translate import damaged, shown_url, translate
from detcore.errors import DatabaseError

__all__ = ["MIGRATIONS", "bring_up_to_date", "make_engine", "transaction"]

# Connections of a process: a worker needs two, a command one; servers have about 100.
_POOL = {"pool_size": 2, "max_overflow": 8, "pool_pre_ping": True}
MIGRATIONS = Path(__file__).parent / "migrations"
# Alembic's own state is global (its `op` works on one database at a time), so its guard is, too.
_ALEMBIC = threading.Lock()
_VERSION = text("SELECT version_num FROM alembic_version")


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


def bring_up_to_date(engine: Engine) -> None:
    """Create or migrate the tables, unless they are up to date, which one query checks.

    Any number of processes may do so at once; one does the work, the others wait for it.

    Raises:
        DatabaseError: If a newer detcore wrote the database, or it cannot be used.
    """
    if _quick_version(engine) == REVISIONS[-1]:
        return
    with _ALEMBIC, transaction(engine, write=True, migrates=True) as connection:
        version = _version(connection)
        if version == REVISIONS[-1]:
            return  # another process did it while this one waited
        if version is not None and version not in REVISIONS:
            raise DatabaseError(_too_new(engine, version))
        if version is None and engine.dialect.name == "postgresql":
            _postgresql.require_unicode(connection)
        _upgrade(connection)
    engine.dispose()


def _quick_version(engine: Engine) -> str | None:
    try:
        with engine.connect() as connection:
            row = connection.execute(_VERSION).fetchone()
    except (OperationalError, ProgrammingError) as error:
        if engine.dialect.name == "sqlite" or isinstance(error, ProgrammingError):
            return None  # no such table, most likely; the slow way finds out
        raise translate(error, engine.url) from error
    except SQLDatabaseError as error:
        raise translate(error, engine.url) from error
    except UnicodeDecodeError as error:
        raise damaged(engine.url, str(error)) from error
    return None if row is None else str(row[0])


def _version(connection: Connection) -> str | None:
    """Return the schema version, holding the write lock, or None for a new database."""
    names = inspect(connection).get_table_names()
    if "alembic_version" not in names:
        if "experiments" in names:
            raise DatabaseError(
                f"the database {shown_url(connection.engine.url)} has tables of other "
                "programs: experiments.\nSet DETCORE_DB to a database of its own."
            )
        return None
    row = connection.execute(_VERSION).fetchone()
    return None if row is None else str(row[0])


def _upgrade(connection: Connection) -> None:
    from alembic import command
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    config.attributes["connection"] = connection
    command.upgrade(config, "head")


def _too_new(engine: Engine, version: str) -> str:
    from detcore import __version__

    return (
        f"the database {shown_url(engine.url)} has schema {version}, which is newer than "
        f"detcore {__version__} knows ({REVISIONS[-1]}).\n"
        "A newer detcore wrote it, and this one could damage its records.\n"
        "Update: python -m pip install --upgrade detcore"
    )
