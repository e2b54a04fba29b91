"""PostgreSQL's connections, locks and errors. All SQL that only PostgreSQL has is in this module.

Transactions behave as in SQLite. Writing transactions run one after the other, and a reading
transaction sees a consistent snapshot. So tests on one database are valid for the other.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from typing import Any

from sqlalchemy import URL, Connection, Engine

from detcore.contract.errors import DatabaseError, StorageFullError
from detcore.records.connections import MIGRATION_TIMEOUT_S, WAIT_S, DatabaseUnavailableError

# Key of the advisory lock that writing transactions hold. Locks are per database.
_LOCK = int.from_bytes(b"detcore", "big")
# First key of the advisory locks of experiments. The second key is the experiment's id.
_RUNNER_LOCKS = int.from_bytes(b"run", "big")
_MAX_NAME = 63  # maximum length of an application name in bytes
# The server ends the session of an unreachable machine after about a minute. Its default is hours.
_SERVER_NETWORK = {
    "tcp_keepalives_idle": "30",
    "tcp_keepalives_interval": "10",
    "tcp_keepalives_count": "3",
    "tcp_user_timeout": "60000",
}
_TRIES, _PAUSE_S = 10, 0.1
# The server ends a long statement or an idle transaction after this time, so that a stopped process
# or an unreachable host does not block all others.
_STATEMENT_TIMEOUT_S = 120.0
_IDLE_TIMEOUT_S = 60.0
_CONNECT_TIMEOUT_S = 10
# A broken network is noticed after about a minute.
_NETWORK = {
    "connect_timeout": _CONNECT_TIMEOUT_S,
    "keepalives_idle": 30,
    "keepalives_interval": 10,
    "keepalives_count": 3,
    "tcp_user_timeout": 60_000,
    "application_name": "detcore",
}


def normalize_url(url: URL) -> URL:
    """Return a URL that names a driver: detcore's default unless the URL has one."""
    if url.drivername in ("postgresql", "postgres"):
        return url.set(drivername="postgresql+psycopg")
    return url


def connect_arguments(url: URL) -> dict[str, Any]:
    """Return the arguments of a connection, except those that the URL sets."""
    return {name: value for name, value in _NETWORK.items() if name not in url.query}


def on_connect(connection: Any, _: object) -> None:
    """Set the timeouts of a connection."""
    # Set by statements, because connection proxies reject options at the start of a session.
    settings = {
        "lock_timeout": WAIT_S,
        "statement_timeout": _STATEMENT_TIMEOUT_S,
        "idle_in_transaction_session_timeout": _IDLE_TIMEOUT_S,
    }
    connection.autocommit = True
    with contextlib.closing(connection.cursor()) as cursor:
        for name, seconds in settings.items():
            cursor.execute(f"SET {name} = {int(seconds * 1000)}")
    connection.autocommit = False


def begin_transaction(connection: Connection, *, write: bool, migrates: bool) -> None:
    """Start a transaction. A writing transaction first waits for other writers."""
    if not write:
        connection.exec_driver_sql("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        return
    if migrates:
        connection.exec_driver_sql("SET LOCAL statement_timeout = 0")
        connection.exec_driver_sql(f"SET LOCAL lock_timeout = {int(MIGRATION_TIMEOUT_S * 1000)}")
    connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_LOCK})")


class LockSession:
    """A server session that holds the lock of an experiment as long as this process lives.

    The methods raise errors of the driver and of SQLAlchemy.

    Args:
        engine: The database.
        experiment_id: The experiment.
    """

    def __init__(self, engine: Engine, experiment_id: int) -> None:
        self._engine = engine
        self._experiment_id = experiment_id
        self._connection: Any = None
        self._is_copy = False
        self._name = ""
        self._pid: object = None

    def acquire(self, name: str) -> bool:
        """Acquire the lock, unless another session holds it. Return whether this session holds it.

        Args:
            name: Describes the holder, for `find_lock_session`.
        """
        self._name = f"detcore {name}"[:_MAX_NAME]
        raw = self._engine.raw_connection()
        self._is_copy = False
        self._connection = raw.driver_connection
        raw.detach()  # the pool would close it in forked children and at exit
        self._connection.autocommit = True
        self._fetch_value("SELECT set_config('application_name', %s, false)", self._name)
        for setting, value in _SERVER_NETWORK.items():
            self._fetch_value("SELECT set_config(%s, %s, false)", setting, value)
        statement = "SELECT pg_try_advisory_lock(%s, %s)"
        is_held = bool(self._fetch_value(statement, _RUNNER_LOCKS, self._experiment_id))
        if is_held:
            self._pid = self._fetch_value("SELECT pg_backend_pid()")
        else:
            self.close()
        return is_held

    def renew(self) -> bool:
        """Reacquire the lock if the connection is lost. Return whether this session holds it."""
        try:
            if self._connection is not None:
                self._fetch_value("SELECT 1")
                return True
        except self._engine.dialect.loaded_dbapi.Error:
            self.close()
        # The server may not have noticed yet that the former connection was lost.
        with self._engine.connect() as connection:
            connection.exec_driver_sql(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE pid = %s AND application_name = %s",
                (self._pid, self._name),
            )
        for _ in range(_TRIES):
            if self.acquire(self._name.partition(" ")[2]):
                return True
            time.sleep(_PAUSE_S)
        return False

    def close(self) -> None:
        """Release the lock."""
        if self._connection is not None:
            # The server may take a moment to end a closed session.
            with contextlib.suppress(self._engine.dialect.loaded_dbapi.Error):
                self._fetch_value("SELECT pg_advisory_unlock_all()")
            self._connection.close()
            self._connection = None

    def close_in_child(self) -> None:
        """Close a fork's copy of the socket, so that the lock is released when the parent exits."""
        if self._connection is not None and not self._is_copy:
            os.close(self._connection.fileno())
            self._is_copy = True  # a child may fork, too

    def _fetch_value(self, statement: str, *values: object) -> object:
        with contextlib.closing(self._connection.cursor()) as cursor:
            cursor.execute(statement, values)
            return cursor.fetchone()[0]


def find_lock_session(connection: Connection, experiment_id: int) -> str | None:
    """Return the name of the session that holds the lock of an experiment, or None."""
    name = connection.exec_driver_sql(
        "SELECT coalesce(application_name, '') FROM pg_locks LEFT JOIN pg_stat_activity USING (pid)"
        " WHERE locktype = 'advisory' AND objsubid = 2 AND granted"
        f" AND classid = {_RUNNER_LOCKS} AND objid = {experiment_id}"
        " AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
    ).scalar()
    return None if name is None else str(name).partition(" ")[2]


def require_unicode(connection: Connection) -> None:
    """Reject a database that cannot store all Unicode strings.

    Raises:
        DatabaseError: If its encoding is not UTF8.
    """
    encoding = connection.exec_driver_sql("SHOW server_encoding").scalar()
    if encoding != "UTF8":
        name = connection.engine.url.database
        raise DatabaseError(
            f"the database {name} has the encoding {encoding}; expected UTF8.\n"
            "Names and messages may contain any character.\n"
            f"Create a new database: createdb --encoding=UTF8 --template=template0 {name}"
        )


def make_error(error: BaseException, reason: str, where: str) -> Exception | None:
    """Return detcore's error for an error of the server, or None for an unknown error.

    Args:
        error: The driver's error.
        reason: Its message.
        where: URL of the database without secrets.
    """
    code = getattr(error, "sqlstate", None) or ""
    reason = re.sub(r"\s+Is the server running .*\?", "", reason)  # detcore's advice is below
    if code == "53100":
        return StorageFullError(
            f"no space left for records in {where}: {reason}.\n"
            "Reports stay in the event logs of their trials and are ingested later.\n"
            "Free some space on the server, then try again."
        )
    if code == "55P03":
        return DatabaseError(
            f"the database {where} was locked by another process for {WAIT_S:.0f} s: {reason}.\n"
            "A process holds a write transaction open.\n"
            "Find the process with: SELECT * FROM pg_stat_activity JOIN pg_locks USING (pid) "
            "WHERE locktype = 'advisory'"
        )
    if code in ("42703", "42P01"):
        return DatabaseError(
            f"the database {where} was created by a development version of detcore: {reason}.\n"
            "Only databases of releases can be migrated.\n"
            "Start with an empty database: createdb --encoding=UTF8 NAME"
        )
    if code == "57014":
        return DatabaseError(
            f"the database {where} did not respond in {_STATEMENT_TIMEOUT_S:.0f} s: {reason}.\n"
            "The server is overloaded, or an administrator canceled the statement. Try again."
        )
    if code in ("25006", "42501"):
        return DatabaseError(
            f"the database {where} is not writable: {reason}.\n"
            "Commands read and write records, and the first use creates tables.\n"
            "Grant the user access (GRANT ALL ON DATABASE, and on SCHEMA public), and use the "
            "address of the primary server."
        )
    if not code or code[:2] in ("08", "28", "3D") or code in ("57P01", "57P02", "57P03", "53300"):
        return _make_unavailable_error(reason, where)
    return None


def _make_unavailable_error(reason: str, where: str) -> DatabaseError:
    low = reason.lower()
    kind = DatabaseError
    if "does not exist" in low and "database" in low:
        todo = "Create it: createdb --encoding=UTF8 NAME"
    elif "password" in low or "authentication" in low or "role" in low:
        todo = "Correct the user and the password in DETCORE_DB, or store them in ~/.pgpass."
    elif "too many" in low or "remaining connection slots" in low:
        todo = "Increase max_connections of the server, or use a connection pooler."
        kind = DatabaseUnavailableError
    else:
        todo = "Start the server, or correct DETCORE_DB."
        kind = DatabaseUnavailableError
    return kind(
        f"the database server of {where} cannot be used: {reason}.\n"
        "DETCORE_DB selects this server. Reports stay in event logs and are ingested later.\n"
        f"{todo}"
    )
