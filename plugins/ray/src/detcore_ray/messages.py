"""Messages between the runner and the process that speaks to Ray.

A socket carries the descriptors of each trial that starts; the first of them is a socket for
that trial, on which both send JSON objects, one a line.
"""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

_MAX_DESCRIPTORS = 64


class Line:
    """One end of a trial's socket. Any thread may send; one thread listens.

    Args:
        connection: The socket; closed with this.
    """

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._file = connection.makefile("rb")
        self._lock = threading.Lock()

    def say(self, kind: str, **fields: Any) -> None:
        """Send a message; if the other end is gone, only `heard` notices."""
        data = json.dumps({"kind": kind, **fields}, default=_plain).encode() + b"\n"
        with self._lock, contextlib.suppress(OSError):
            self._socket.sendall(data)

    def heard(self) -> Iterator[dict[str, Any]]:
        """Yield the other end's messages, until it is closed or gone."""
        while True:
            try:
                data = self._file.readline()
            except OSError:
                return
            # A message without its end comes from a process that was killed.
            if not data.endswith(b"\n"):
                return
            yield json.loads(data)

    def hang_up(self) -> None:
        """Say that no more comes: the other end's `heard` ends."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """Release it."""
        self._file.close()
        self._socket.close()


def send_descriptors(control: socket.socket, descriptors: Sequence[int]) -> None:
    """Hand descriptors over; the other process gets its own copies.

    Raises:
        OSError: If the other process is gone.
    """
    socket.send_fds(control, [b"+"], list(descriptors))


def receive_descriptors(control: socket.socket) -> list[int] | None:
    """Wait for descriptors; None when the other process is gone."""
    try:
        data, descriptors, _, _ = socket.recv_fds(control, 1, _MAX_DESCRIPTORS)
    except OSError:
        return None
    return list(descriptors) if data else None


def _plain(value: object) -> Any:
    """Convert a value that JSON cannot represent to one that it can."""
    to_list = getattr(value, "tolist", None)  # NumPy's
    if callable(to_list):
        return to_list()
    return dict(value) if isinstance(value, Mapping) else str(value)
