"""Engines, transactions, and bringing a database up to date."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote

from sqlalchemy import (
    URL,
    Connection,
    Engine,
    create_engine,
    event,
    inspect,
    make_url,
    text,
)
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

from detcore.contract.errors import DatabaseError
from detcore.records import postgresql, sqlite
from detcore.records.column_types import set_home
from detcore.records.connections import WAIT_S, ForkGuard, mask_url
from detcore.records.schema import metadata
from detcore.version import __version__

# Connections of a process: a worker needs two, a command one; servers have about 100.
_POOL = {"pool_size": 2, "max_overflow": 8, "pool_pre_ping": True}
MIGRATIONS = Path(__file__).parent / "migrations"
_VERSION_TABLE = "alembic_version"
_SELECT_VERSION = text(f"SELECT version_num FROM {_VERSION_TABLE}")
# Execution option of connections: how their next transaction begins.
_MODE = "detcore_mode"
_READS = {"write": False, "migrates": False}
# Alembic's own state is global (its `op` works on one database at a time), so its guard is, too.
_ALEMBIC = threading.Lock()
READ_ONLY = "detcore_read_only"
"""Execution option of an engine whose database cannot be written."""


def make_engine(url: str) -> tuple[Engine, ForkGuard]:
    """Return an engine for a URL; nothing is opened yet, but SQLite's folder is made.

    Raises:
        DatabaseError: If the URL cannot be used, or its driver is not installed.
    """
    try:
        parsed = postgresql.normalize_url(make_url(url))
    except ArgumentError:
        # Its reason may hold the URL, and with it the password.
        raise _unusable(_hidden(url), "it is not a URL") from None
    backend = parsed.get_backend_name()
    if backend not in ("sqlite", "postgresql"):
        raise _unusable(mask_url(parsed), f"detcore knows SQLite and PostgreSQL, not {backend}")
    try:
        if backend == "sqlite":
            parsed = parsed.set(database=_file_of(url))
            on_connect, begin = sqlite.on_connect, sqlite.begin
            if sqlite.prepare_file(parsed):
                engine = create_engine(parsed, connect_args={"timeout": WAIT_S})
            else:
                engine = create_engine(parsed, creator=lambda: sqlite.connect_read_only(parsed))
                on_connect = sqlite.on_connect_read_only
                engine.update_execution_options(**{READ_ONLY: True})
            set_home(engine, Path(str(parsed.database)).absolute().parent)
        else:
            arguments = postgresql.connect_arguments(parsed)
            engine = create_engine(parsed, connect_args=arguments, **_POOL)
            on_connect, begin = postgresql.on_connect, postgresql.begin
    except (ArgumentError, NoSuchModuleError) as error:
        raise _unusable(mask_url(parsed), str(error)) from None
    except ModuleNotFoundError as error:
        raise DatabaseError(_missing_driver(parsed, error)) from error
    event.listen(engine, "connect", on_connect)
    event.listen(
        engine, "begin", lambda link: begin(link, **link.get_execution_options().get(_MODE, _READS))
    )
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
    try:
        with engine.connect() as connection:
            chosen = connection.execution_options(**{_MODE: {"write": write, "migrates": migrates}})
            with chosen.begin():
                yield chosen
    except IntegrityError:
        raise  # the caller knows which of its values is wrong
    except DBAPIError as error:
        raise translate_error(error, engine.url) from error
    except UnicodeDecodeError as error:
        raise sqlite.damaged(engine.url, str(error)) from error
    except PoolTimeoutError as error:
        raise DatabaseError(
            f"no connection to {mask_url(engine.url)} became free: {error}.\n"
            "Too many threads of this process use it at once."
        ) from error
    except OverflowError as error:
        raise DatabaseError(
            f"a number is too large for the records in {mask_url(engine.url)}: {error}.\n"
            "Whole numbers in records have 64 bits."
        ) from error


def translate_error(error: Exception, url: URL) -> Exception:
    """Return detcore's error for one of the driver's or SQLAlchemy's."""
    where = mask_url(url)
    cause = getattr(error, "orig", None) or error
    reason = str(cause).strip().rstrip(".")
    if url.password:
        reason = reason.replace(str(url.password), "***")
    if url.get_backend_name() == "postgresql":
        found = postgresql.explain(cause, reason, where)
    else:
        found = sqlite.explain(reason, url)
    return found or DatabaseError(f"the database {where} refused a statement: {reason}")


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
        f"the database {mask_url(url)} needs the Python package {error.name!r}, which is not "
        f"installed.\nInstall it: python -m pip install {package}"
    )


def _hidden(url: str) -> str:
    """Return a URL that could not be parsed, without what may be a password."""
    head, at, tail = url.rpartition("@")
    scheme = head.partition("://")[0] + "://" if "://" in head else ""
    return f"{scheme}***@{tail.partition('?')[0]}" if at else url.partition("?")[0]


def bring_up_to_date(engine: Engine) -> None:
    """Create or migrate tables, unless they are up to date, which one query checks.

    Any number of processes may do so concurrently. One does the work, and the others wait for it.

    Args:
        engine: The database.

    Raises:
        DatabaseError: If a newer detcore wrote the database, or it cannot be used.
    """
    newest = list_revisions()[-1]
    if _quick_version(engine) == newest:
        return
    with _ALEMBIC, transaction(engine, write=True, migrates=True) as connection:
        version = None
        if _VERSION_TABLE in inspect(connection).get_table_names():
            version = connection.scalar(_SELECT_VERSION)
        if version == newest:
            return  # another process did it while this one waited
        if version is None:
            _require_room(connection)
            _create_tables(connection)
        elif version in list_revisions():
            _migrate(connection)
        else:
            raise DatabaseError(_unknown_version(engine, version))
    engine.dispose()


def list_revisions() -> tuple[str, ...]:
    """Return the versions of the tables that this code can migrate, oldest first.

    It works with the last one. Each version is a file in ``migrations/versions``.
    """
    return tuple(sorted(path.stem for path in (MIGRATIONS / "versions").glob("[0-9]*.py")))


def _create_tables(connection: Connection) -> None:
    """Create the tables of a new database, which needs no Alembic, and record their version."""
    metadata.create_all(connection, checkfirst=False)
    key = f"CONSTRAINT {_VERSION_TABLE}_pkc PRIMARY KEY (version_num)"
    connection.execute(
        text(f"CREATE TABLE {_VERSION_TABLE} (version_num VARCHAR(32) NOT NULL, {key})")
    )
    connection.execute(text(f"INSERT INTO {_VERSION_TABLE} VALUES ('{list_revisions()[-1]}')"))


def _migrate(connection: Connection) -> None:
    """Apply the migrations that a database lacks.

    The caller's transaction holds the write lock, so that a killed migration leaves nothing.
    """
    from alembic.migration import MigrationContext
    from alembic.operations import Operations
    from alembic.script import ScriptDirectory

    scripts = ScriptDirectory(str(MIGRATIONS))
    context = MigrationContext.configure(connection, opts={"target_metadata": metadata})
    with Operations.context(context):
        missing = scripts.iterate_revisions("head", context.get_current_revision())
        for script in reversed(list(missing)):
            script.module.upgrade()
    context.stamp(scripts, "head")


def _quick_version(engine: Engine) -> str | None:
    try:
        with engine.connect() as connection:
            version: str | None = connection.scalar(_SELECT_VERSION)
            return version
    except (OperationalError, ProgrammingError) as error:
        if engine.dialect.name == "sqlite" or isinstance(error, ProgrammingError):
            return None  # no such table, most likely; the slow way finds out
        raise translate_error(error, engine.url) from error
    except SQLDatabaseError as error:
        raise translate_error(error, engine.url) from error
    except UnicodeDecodeError as error:
        raise sqlite.damaged(engine.url, str(error)) from error


def _require_room(connection: Connection) -> None:
    """Raise DatabaseError if the records cannot be in a database that has none."""
    if "experiments" in inspect(connection).get_table_names():
        raise DatabaseError(
            f"the database {mask_url(connection.engine.url)} has tables of other "
            "programs: experiments.\nSet DETCORE_DB to a database of its own."
        )
    if connection.dialect.name == "postgresql":
        postgresql.require_unicode(connection)


def _unknown_version(engine: Engine, version: str) -> str:
    return (
        f"the database {mask_url(engine.url)} has schema {version}, which is newer than "
        f"detcore {__version__} knows ({list_revisions()[-1]}).\n"
        "A newer detcore wrote it, and this one could damage its records.\n"
        "Update: python -m pip install --upgrade detcore"
    )
