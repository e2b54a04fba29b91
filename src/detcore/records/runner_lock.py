"""The lock of an experiment: its holder runs the experiment, and nothing else says who does.

It is the lock of a file, which the chief worker inherits, so that it outlives a killed runner until
that worker is gone. In PostgreSQL, which machines share, a session of the server holds an advisory
lock as well.
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
        host: Name of its machine.
        pid: Its number there; 0 if it cannot be read.
    """

    host: str
    pid: int

    @classmethod
    def parse(cls, text: str) -> Runner:
        """Read a number and a host name."""
        pid, _, host = text.strip().partition(" ")
        return cls(host or "?", int(pid) if pid.isdigit() else 0)

    @property
    def is_here(self) -> bool:
        """Whether it is a process of this machine."""
        return socket.gethostname().startswith(self.host)  # a long name is cut

    @property
    def is_alive(self) -> bool:
        """Whether the process exists, as far as can be seen from this machine."""
        try:
            if self.is_here and self.pid:
                os.kill(self.pid, 0)
        except ProcessLookupError:
            return False
        except PermissionError:
            pass  # it exists, under another user
        return True


class RunnerLock:
    """The lock of an experiment, not yet held; see `Database.open_lock`.

    Args:
        engine: The records.
        experiment_id: Which experiment.
        home: Holds the file of the lock where the records are on a server.

    Attributes:
        fd: The file of the lock, for workers to inherit.
        is_lost: Whether another process took or settled the experiment while the server of the
            records was unreachable. This one writes nothing about it any more.
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
        """Take the lock, unless a process has it; return whether this one holds it now.

        Raises:
            DatabaseError: If the server of the records cannot be asked.
        """
        if not self._lock_file():
            return False
        me = f"{os.getpid()} {socket.gethostname()}"
        if self._session is not None and not self._ask(self._session.acquire, me):
            fcntl.flock(self.fd, fcntl.LOCK_UN)
            return False
        os.ftruncate(self.fd, os.pwrite(self.fd, me.encode(), 0))
        self.is_lost = False
        return True

    def is_held(self) -> bool:
        """Whether this process still holds the lock; a lost session of the server is renewed.

        Raises:
            DatabaseError: If the server of the records cannot be asked.
        """
        if self._session is not None and not self.is_lost:
            self.is_lost = not self._ask(self._session.renew)
        return not self.is_lost

    def find_holder(self) -> Runner:
        """Return the process that holds the lock, or held it last."""
        runner = find_runner(self._engine, self._experiment_id)
        return runner or Runner.parse(os.pread(self.fd, 256, 0).decode(errors="replace"))

    def keep(self) -> None:
        """Hold the lock until this process ends; `close` has no effect then."""
        self._is_kept = True

    def close_in_children(self) -> None:
        """Close what forks copy: the children of a killed process do not hold its lock."""
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
        if self.fd >= 0:  # a child forks, too, and then the number is that of another file
            number, self.fd = self.fd, -1
            os.close(number)

    def _lock_file(self) -> bool:
        for _ in range(_TRIES):
            try:
                fcntl.flock(self.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                time.sleep(_PAUSE_S)  # a process that looks has it for a moment
            else:
                return True
        return False

    def _ask(self, question: Callable[..., bool], *arguments: str) -> bool:
        try:
            return question(*arguments)
        except (SQLAlchemyError, self._engine.dialect.loaded_dbapi.Error) as error:
            raise translate_error(error, self._engine.url) from error


def find_runner(engine: Engine, experiment_id: int) -> Runner | None:
    """Return the process that holds the lock of an experiment; None if none does."""
    path = _find_file(engine, experiment_id)
    if path is None:
        with transaction(engine) as connection:
            name = find_lock_session(connection, experiment_id)
        return None if name is None else Runner.parse(name)
    if not is_file_locked(path):
        return None
    return Runner.parse(path.read_text(encoding="utf-8", errors="replace"))


def _find_file(engine: Engine, experiment_id: int) -> Path | None:
    """Return the file of a lock beside the database; None if that is on a server."""
    if engine.dialect.name == "postgresql":
        return None
    return Path(f"{os.path.realpath(str(engine.url.database))}-locks", str(experiment_id))
