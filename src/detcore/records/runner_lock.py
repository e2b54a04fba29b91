"""The lock of an experiment, whose holder runs the experiment.

It is a file lock. The chief worker inherits it, so the lock of a killed runner is held until that
worker has exited. In PostgreSQL, which several machines may share, a server session also holds an
advisory lock.
"""

from __future__ import annotations

import fcntl
import os
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

from sqlalchemy import Engine
from sqlalchemy.exc import SQLAlchemyError

from detcore.atomic_files import is_file_locked
from detcore.records.engine import transaction, translate_error
from detcore.records.postgresql import LockSession, find_lock_session

_TRIES, _PAUSE_S = 5, 0.01


class Runner(NamedTuple):
    """The process that holds the lock of an experiment.

    Attributes:
        host: Host name of its machine.
        pid: Process id; 0 if it cannot be read.
    """

    host: str
    pid: int

    @classmethod
    def parse(cls, text: str) -> Runner:
        """Parse a process id and a host name."""
        pid, _, host = text.strip().partition(" ")
        return cls(host or "?", int(pid) if pid.isdigit() else 0)

    @property
    def is_here(self) -> bool:
        """Whether the process is on this machine."""
        return socket.gethostname().startswith(self.host)  # a long name is truncated

    @property
    def is_alive(self) -> bool:
        """Whether the process exists, or is on another machine."""
        try:
            if self.is_here and self.pid:
                os.kill(self.pid, 0)
        except ProcessLookupError:
            return False
        except PermissionError:
            pass  # the process exists and belongs to another user
        return True


class RunnerLock:
    """The lock of an experiment, initially not held; see `Database.open_lock`.

    Args:
        engine: The records.
        experiment_id: The experiment.
        home: Directory of the lock file if the records are on a server.

    Attributes:
        fd: File descriptor of the lock file, for workers to inherit.
        is_lost: Whether another process took over or ended the experiment while the database server
            was unreachable. If so, this process must not write to its records any more.
    """

    def __init__(self, engine: Engine, experiment_id: int, home: Path) -> None:
        self._engine = engine
        self._experiment_id = experiment_id
        self._session: LockSession | None = None
        self._is_kept = False
        self.is_lost = False
        path = _find_file(engine, experiment_id)
        if path is None:
            url = engine.url
            folder = quote(f"{url.host}:{url.port or ''}/{url.database}", safe=":")
            path = home / "locks" / folder / str(experiment_id)
            self._session = LockSession(engine, experiment_id)
        path.parent.mkdir(parents=True, exist_ok=True)
        self.fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)

    def acquire(self) -> bool:
        """Acquire the lock, unless another process holds it. Return whether this process holds it.

        Raises:
            DatabaseError: If the database server cannot be queried.
        """
        if not self._lock_file():
            return False
        me = f"{os.getpid()} {socket.gethostname()}"
        if self._session is not None and not self._query_server(self._session.acquire, me):
            fcntl.flock(self.fd, fcntl.LOCK_UN)
            return False
        os.ftruncate(self.fd, os.pwrite(self.fd, me.encode(), 0))
        self.is_lost = False
        return True

    def is_held(self) -> bool:
        """Return whether this process still holds the lock, and renew a lost server session.

        Raises:
            DatabaseError: If the database server cannot be queried.
        """
        if self._session is not None and not self.is_lost:
            self.is_lost = not self._query_server(self._session.renew)
        return not self.is_lost

    def find_holder(self) -> Runner:
        """Return the process that holds the lock, or the last process that held it."""
        runner = find_runner(self._engine, self._experiment_id)
        return runner or Runner.parse(os.pread(self.fd, 256, 0).decode(errors="replace"))

    def keep(self) -> None:
        """Hold the lock until this process exits. `close` has no effect afterwards."""
        self._is_kept = True

    def close_in_children(self) -> None:
        """Close the lock in forked children, so that they do not hold a killed parent's lock."""
        os.register_at_fork(after_in_child=self._close_in_child)

    def close(self) -> None:
        """Release the lock, unless workers have inherited it."""
        if not self._is_kept:
            self._close_file()
            if self._session is not None:
                self._session.close()

    def _close_in_child(self) -> None:
        self._close_file()
        if self._session is not None:
            self._session.close_in_child()

    def _close_file(self) -> None:
        if self.fd >= 0:  # after a second fork, the number may belong to another file
            number, self.fd = self.fd, -1
            os.close(number)

    def _lock_file(self) -> bool:
        for _ in range(_TRIES):
            try:
                fcntl.flock(self.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                time.sleep(_PAUSE_S)  # a process that checks the lock holds it for a moment
            else:
                return True
        return False

    def _query_server(self, question: Callable[..., bool], *arguments: str) -> bool:
        try:
            return question(*arguments)
        except (SQLAlchemyError, self._engine.dialect.loaded_dbapi.Error) as error:
            raise translate_error(error, self._engine.url) from error


def find_runner(engine: Engine, experiment_id: int) -> Runner | None:
    """Return the process that holds the lock of an experiment, or None."""
    path = _find_file(engine, experiment_id)
    if path is None:
        with transaction(engine) as connection:
            name = find_lock_session(connection, experiment_id)
        return None if name is None else Runner.parse(name)
    if not is_file_locked(path):
        return None
    return Runner.parse(path.read_text(encoding="utf-8", errors="replace"))


def _find_file(engine: Engine, experiment_id: int) -> Path | None:
    """Return the lock file next to the database, or None if the database is on a server."""
    if engine.dialect.name == "postgresql":
        return None
    return Path(f"{os.path.realpath(str(engine.url.database))}-locks", str(experiment_id))
