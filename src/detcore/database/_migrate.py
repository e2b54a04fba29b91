"""Bring a database to the schema of this code; Alembic is imported only when there is work."""

from __future__ import annotations

import threading
from pathlib import Path

from sqlalchemy import Connection, Engine, inspect, text
from sqlalchemy.exc import DatabaseError as SQLDatabaseError
from sqlalchemy.exc import OperationalError, ProgrammingError

from detcore.database import _postgresql
from detcore.database._engine import transaction
from detcore.database._schema import REVISIONS
from detcore.database._translate import damaged, shown_url, translate
from detcore.errors import DatabaseError

__all__ = ["MIGRATIONS", "bring_up_to_date"]

MIGRATIONS = Path(__file__).parent / "migrations"
# Alembic's own state is global (its `op` works on one database at a time), so its guard is, too.
_ALEMBIC = threading.Lock()
_VERSION = text("SELECT version_num FROM alembic_version")


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
