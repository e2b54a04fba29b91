"""SQLAlchemy engines, transactions and schema migrations."""

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

# A worker needs two connections and a command needs one. A server allows about 100.
_POOL = {"pool_size": 2, "max_overflow": 8, "pool_pre_ping": True}
MIGRATIONS = Path(__file__).parent / "migrations"
_VERSION_TABLE = "alembic_version"
_SELECT_VERSION = text(f"SELECT version_num FROM {_VERSION_TABLE}")
# Execution option of a connection that selects how its next transaction starts.
_MODE = "detcore_mode"
_READS = {"write": False, "migrates": False}
# Alembic's `op` is global and works on one database at a time, so its lock is global, too.
_ALEMBIC = threading.Lock()
READ_ONLY = "detcore_read_only"
"""Execution option of an engine whose database cannot be written."""


def make_engine(url: str) -> tuple[Engine, ForkGuard]:
    """Return an engine for a URL. Opens no connection, but creates SQLite's directory.

    Raises:
        DatabaseError: If the URL cannot be used, or its driver is not installed.
    """
    try:
        parsed = postgresql.normalize_url(make_url(url))
    except ArgumentError:
        # The reason may contain the URL, including the password.
        raise _make_url_error(_mask_unparsed_url(url), "it is not a URL") from None
    backend = parsed.get_backend_name()
    if backend not in ("sqlite", "postgresql"):
        raise _make_url_error(
            mask_url(parsed), f"detcore supports SQLite and PostgreSQL, not {backend}"
        )
    try:
        if backend == "sqlite":
            parsed = parsed.set(database=_parse_sqlite_path(url))
            on_connect, begin = sqlite.on_connect, sqlite.begin_transaction
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
            on_connect, begin = postgresql.on_connect, postgresql.begin_transaction
    except (ArgumentError, NoSuchModuleError) as error:
        raise _make_url_error(mask_url(parsed), str(error)) from None
    except ModuleNotFoundError as error:
        raise DatabaseError(_explain_missing_driver(parsed, error)) from error
    event.listen(engine, "connect", on_connect)
    event.listen(
        engine, "begin", lambda link: begin(link, **link.get_execution_options().get(_MODE, _READS))
    )
    return engine, ForkGuard(engine)


@contextlib.contextmanager
def transaction(
    engine: Engine, *, write: bool = False, migrates: bool = False
) -> Iterator[Connection]:
    """Run a block in a transaction. A reading transaction sees a consistent snapshot.

    Args:
        engine: The database.
        write: Whether the block writes. Writing transactions run one after the other.
        migrates: Whether the block migrates tables, which may take long.

    Raises:
        StorageFullError: If the disk is full.
        DatabaseError: If the database cannot be used, or contains invalid text.
    """
    try:
        with engine.connect() as connection:
            mode = {"write": write, "migrates": migrates}
            connection = connection.execution_options(**{_MODE: mode})
            with connection.begin():
                yield connection
    except IntegrityError:
        raise  # the caller knows which value is wrong
    except DBAPIError as error:
        raise translate_error(error, engine.url) from error
    except UnicodeDecodeError as error:
        raise sqlite.make_damage_error(engine.url, str(error)) from error
    except PoolTimeoutError as error:
        raise DatabaseError(
            f"no connection to {mask_url(engine.url)} became free: {error}.\n"
            "Too many threads of this process use the database concurrently."
        ) from error
    except OverflowError as error:
        raise DatabaseError(
            f"a number is too large for the records in {mask_url(engine.url)}: {error}.\n"
            "Integers in records have 64 bits."
        ) from error


def translate_error(error: Exception, url: URL) -> Exception:
    """Return detcore's error for an error of the driver or of SQLAlchemy."""
    where = mask_url(url)
    cause = getattr(error, "orig", None) or error
    reason = str(cause).strip().rstrip(".")
    if url.password:
        reason = reason.replace(str(url.password), "***")
    if url.get_backend_name() == "postgresql":
        translated = postgresql.make_error(cause, reason, where)
    else:
        translated = sqlite.make_error(reason, url)
    return translated or DatabaseError(f"the database {where} rejected a statement: {reason}")


def _parse_sqlite_path(url: str) -> str:
    """Return the file of an SQLite URL. SQLAlchemy before 2.1 does not decode percent escapes."""
    return unquote(url.partition(":///")[2].partition("?")[0])


def _make_url_error(url: str, reason: str) -> DatabaseError:
    return DatabaseError(
        f"the database URL {url!r} cannot be used: {reason}.\n"
        "Set DETCORE_DB to something like sqlite:////home/me/detcore.db or "
        "postgresql+psycopg://user@host/detcore, or unset it."
    )


def _explain_missing_driver(url: URL, error: ModuleNotFoundError) -> str:
    usual = url.get_driver_name() == "psycopg"
    package = "'detcore[postgresql]'" if usual else error.name
    return (
        f"the database {mask_url(url)} needs the Python package {error.name!r}, which is not "
        f"installed.\nInstall it: python -m pip install {package}"
    )


def _mask_unparsed_url(url: str) -> str:
    """Return a URL that could not be parsed, without the part that may contain a password."""
    head, at, tail = url.rpartition("@")
    scheme = head.partition("://")[0] + "://" if "://" in head else ""
    return f"{scheme}***@{tail.partition('?')[0]}" if at else url.partition("?")[0]


def migrate_tables(engine: Engine) -> None:
    """Create or migrate the tables. One query checks whether they are up to date already.

    Any number of processes may call this concurrently. One process does the work while the others
    wait for it.

    Args:
        engine: The database.

    Raises:
        DatabaseError: If a newer detcore wrote the database, or it cannot be used.
    """
    newest = list_revisions()[-1]
    if _read_version(engine) == newest:
        return
    with _ALEMBIC, transaction(engine, write=True, migrates=True) as connection:
        version = None
        if _VERSION_TABLE in inspect(connection).get_table_names():
            version = connection.scalar(_SELECT_VERSION)
        if version == newest:
            return  # another process migrated the tables while this process waited
        if version is None:
            _require_room(connection)
            _create_tables(connection)
        elif version in list_revisions():
            _apply_migrations(connection)
        else:
            raise DatabaseError(_explain_unknown_version(engine, version))
    engine.dispose()


def list_revisions() -> tuple[str, ...]:
    """Return the schema versions that this code can migrate, oldest first.

    This code uses the last version. Each version is a file in ``migrations/versions``.
    """
    return tuple(sorted(path.stem for path in (MIGRATIONS / "versions").glob("[0-9]*.py")))


def _create_tables(connection: Connection) -> None:
    """Create the tables of a new database without Alembic, and record their version."""
    metadata.create_all(connection, checkfirst=False)
    key = f"CONSTRAINT {_VERSION_TABLE}_pkc PRIMARY KEY (version_num)"
    connection.execute(
        text(f"CREATE TABLE {_VERSION_TABLE} (version_num VARCHAR(32) NOT NULL, {key})")
    )
    connection.execute(text(f"INSERT INTO {_VERSION_TABLE} VALUES ('{list_revisions()[-1]}')"))


def _apply_migrations(connection: Connection) -> None:
    """Apply the migrations that a database lacks.

    The caller's transaction holds the write lock, so a killed migration leaves no trace.
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


def _read_version(engine: Engine) -> str | None:
    try:
        with engine.connect() as connection:
            version: str | None = connection.scalar(_SELECT_VERSION)
            return version
    except (OperationalError, ProgrammingError) as error:
        if engine.dialect.name == "sqlite" or isinstance(error, ProgrammingError):
            return None  # probably the table is missing; the slow path checks that
        raise translate_error(error, engine.url) from error
    except SQLDatabaseError as error:
        raise translate_error(error, engine.url) from error
    except UnicodeDecodeError as error:
        raise sqlite.make_damage_error(engine.url, str(error)) from error


def _require_room(connection: Connection) -> None:
    """Raise DatabaseError if the tables cannot be created in a database without records."""
    if "experiments" in inspect(connection).get_table_names():
        raise DatabaseError(
            f"the database {mask_url(connection.engine.url)} has tables of other "
            "programs: experiments.\nSet DETCORE_DB to a database that only detcore uses."
        )
    if connection.dialect.name == "postgresql":
        postgresql.require_unicode(connection)


def _explain_unknown_version(engine: Engine, version: str) -> str:
    return (
        f"the database {mask_url(engine.url)} has schema {version}, which is newer than "
        f"detcore {__version__} supports ({list_revisions()[-1]}).\n"
        "A newer detcore wrote it, and this version could damage its records.\n"
        "Update: python -m pip install --upgrade detcore"
    )
