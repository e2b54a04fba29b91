"""Telling the runner how training goes, without ever waiting for it."""

from __future__ import annotations

import json
import os
import select
import stat
import threading
import time
from typing import Any

__all__ = ["EventPipe", "is_pipe"]

# What only moves a display forward; the next one says it again.
_DROPPABLE = frozenset({"progress", "training"})
# What the runner has to hear, however much waits before it.
_NEEDED = frozenset({"searcher_completed", "finished", "damaged"})
_MAX_PENDING_BYTES = 1 << 20


class EventPipe:
    """Writes events as JSON lines to a pipe, in the order they are sent. Thread-safe.

    Training neither fails nor waits because of it: a reader that is gone ends the pipe silently,
    and while a pipe is full progress events are dropped and others kept until there is room.
    """

    def __init__(self, fd: int | None) -> None:
        """Take a descriptor.

        Args:
            fd: Write end of a pipe; None, or anything that is no pipe, means nobody listens. It is
                not closed, because the number belongs to whoever started this process.
        """
        self._fd = fd if fd is not None and is_pipe(fd) else None
        self._pending = b""
        self._sent: set[str] = set()
        self._lock = threading.Lock()
        if self._fd is not None:
            os.set_blocking(self._fd, False)
            os.set_inheritable(self._fd, False)

    def send(self, type: str, **fields: Any) -> None:
        """Send an event.

        Args:
            type: ``"training"``, ``"validation"``, ``"checkpoint"``, ``"progress"``,
                ``"status"``, ``"finished"``, or another word that the reader knows.
            **fields: JSON values.
        """
        line = json.dumps({"type": type, **fields}).encode() + b"\n"
        with self._lock:
            self._sent.add(type)
            self._write_pending()
            if self._fd is None:
                return
            is_too_much = len(self._pending) + len(line) > _MAX_PENDING_BYTES
            if self._pending and (type in _DROPPABLE or (is_too_much and type not in _NEEDED)):
                return
            self._pending += line
            self._write_pending()

    def has_sent(self, type: str) -> bool:
        """Whether an event of this type was sent by this process."""
        return type in self._sent

    def deliver(self) -> None:
        """Wait until all that was sent is in the pipe, or nobody reads any more."""
        while True:
            with self._lock:
                self._write_pending()
                if not self._pending or self._fd is None:
                    return
                fd = self._fd
            select.select([], [fd], [], 0.1)

    def close(self, timeout_s: float = 1.0) -> None:
        """Give a slow reader a moment to take what is left."""
        deadline = time.monotonic() + timeout_s
        with self._lock:
            while self._pending and self._fd is not None:
                remaining_s = deadline - time.monotonic()
                if remaining_s <= 0:
                    break
                select.select([], [self._fd], [], remaining_s)
                self._write_pending()

    def _write_pending(self) -> None:
        while self._pending and self._fd is not None:
            try:
                written = os.write(self._fd, self._pending)
            except BlockingIOError:
                return
            except OSError:  # EPIPE: nobody reads any more, and training goes on
                self._fd = None
                self._pending = b""
                return
            self._pending = self._pending[written:]


def is_pipe(fd: int) -> bool:
    """Whether a descriptor is open, and one of a pipe."""
    try:
        return stat.S_ISFIFO(os.fstat(fd).st_mode)
    except OSError:
        return False
