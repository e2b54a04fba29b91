"""Time that passes only while everybody waits, and ends when the process is killed."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from detcore.checkpoint._save import Background
from detcore.storage import FileDigest, StorageBackend

__all__ = ["Killed", "KilledDatabase", "TimedStorage", "VirtualTime"]

_PIECES = 8


class Killed(BaseException):
    """The process is gone; whatever it still tries has no effect."""


class VirtualTime(Background):
    """A `Background` for asynchronous saves, and the time that the training takes.

    Attributes:
        kill_at: When the process is killed.
        is_dead: Whether it was.
    """

    def __init__(self) -> None:
        self.kill_at = math.inf
        self.is_dead = False
        self._now = 0.0
        self._changed = threading.Condition()
        self._running = 1
        self._waiting: dict[object, tuple[float, threading.Event | None]] = {}

    def now(self) -> float:
        return self._now

    def start(self, work: Callable[[], None]) -> None:
        def run() -> None:
            try:
                work()
            finally:
                with self._changed:
                    self._running -= 1
                    self._go_on()

        with self._changed:
            self._running += 1
        threading.Thread(target=run, daemon=True).start()

    def wait(self, done: threading.Event, timeout_s: float | None) -> bool:
        until = math.inf if timeout_s is None else self._now + timeout_s
        self._block(until, done)
        return done.is_set()

    def sleep(self, seconds: float) -> None:
        self._block(self._now + seconds, None)

    def end(self) -> None:
        """The process ends by itself, and its threads with it."""
        with self._changed:
            self.is_dead = True
            self._changed.notify_all()

    def check(self) -> None:
        if self.is_dead:
            raise Killed

    def _block(self, until: float, done: threading.Event | None) -> None:
        with self._changed:
            self.check()
            if done is not None and done.is_set():
                return
            me = object()
            self._waiting[me] = (until, done)
            self._running -= 1
            self._go_on()
            self._changed.wait_for(lambda: me not in self._waiting or self.is_dead)
            self.check()

    def _go_on(self) -> None:
        """Let time pass until somebody has something to do, if all wait."""
        if self._running or not self._waiting or self.is_dead:
            return
        due = [me for me, (_, done) in self._waiting.items() if done is not None and done.is_set()]
        if not due:
            first = min(until for until, _ in self._waiting.values())
            if first >= self.kill_at:
                self._now, self.is_dead = self.kill_at, True
            else:
                self._now = first
                due = [me for me, (until, _) in self._waiting.items() if until <= first]
        for me in due:
            del self._waiting[me]
            self._running += 1
        self._changed.notify_all()


class TimedStorage:
    """A storage back end whose operations take virtual time.

    Attributes:
        bytes_per_s: How fast files travel.
    """

    latency_s = 0.01

    def __init__(self, storage: StorageBackend, time: VirtualTime, bytes_per_s: float) -> None:
        self._storage = storage
        self._time = time
        self.bytes_per_s = bytes_per_s

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._storage, name)
        if name in ("url", "capabilities", "direct_path"):
            return value

        def run(*arguments: Any, **options: Any) -> Any:
            self._time.sleep(self.latency_s)
            return value(*arguments, **options)

        return run

    def put_tree(
        self, pairs: Sequence[tuple[Path, str]], *, progress: Any = None
    ) -> dict[str, FileDigest]:
        """Copy files one after the other; what the kill cuts off is not there, or half."""
        digests: dict[str, FileDigest] = {}
        for path, key in pairs:
            self._travel(path.stat().st_size, progress)
            digests |= self._storage.put_tree([(path, key)])
        return digests

    def digest_tree(
        self, keys: Sequence[str], *, progress: Any = None, **options: Any
    ) -> dict[str, FileDigest]:
        """Read files where they are."""
        for key in keys:
            path = self._storage.direct_path(key)
            self._travel(path.stat().st_size if path is not None else 0, progress)
        return self._storage.digest_tree(keys, **options)

    def _travel(self, size: int, progress: Any) -> None:
        for _ in range(_PIECES):
            self._time.sleep(size / _PIECES / self.bytes_per_s)
            if progress is not None:
                progress(size // _PIECES)


class KilledDatabase:
    """Records that a process which is gone cannot change."""

    def __init__(self, database: Any, time: VirtualTime) -> None:
        self._database = database
        self._time = time

    def __getattr__(self, name: str) -> Any:
        self._time.check()
        return getattr(self._database, name)
