"""Messages between the runner and the driver process.

A control socket transfers the descriptors of each starting trial. The first descriptor is the
trial's socket, on which both sides send JSON objects, one per line.
"""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

_MAX_DESCRIPTORS = 64


class Channel:
    """One end of a trial's socket. Any thread may send messages; only one thread may read them.

    Args:
        connection: The socket, which `close` closes.
    """

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._file = connection.makefile("rb")
        self._lock = threading.Lock()

    def send_message(self, kind: str, **fields: Any) -> None:
        """Send a message. If the other end has exited, only `read_messages` notices."""
        data = json.dumps({"kind": kind, **fields}, default=_to_json).encode() + b"\n"
        with self._lock, contextlib.suppress(OSError):
            self._socket.sendall(data)

    def read_messages(self) -> Iterator[dict[str, Any]]:
        """Yield the other end's messages until it closes the channel or exits."""
        while True:
            try:
                data = self._file.readline()
            except OSError:
                return
            # An incomplete message comes from a process that was killed.
            if not data.endswith(b"\n"):
                return
            yield json.loads(data)

    def hang_up(self) -> None:
        """Stop sending, so that the other end's `read_messages` ends."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """Close the socket."""
        self._file.close()
        self._socket.close()


def send_descriptors(control: socket.socket, descriptors: Sequence[int]) -> None:
    """Send descriptors to the other process, which receives copies.

    Raises:
        OSError: If the other process has exited.
    """
    socket.send_fds(control, [b"+"], list(descriptors))


def receive_descriptors(control: socket.socket) -> list[int] | None:
    """Wait for descriptors; return None when the other process has exited."""
    try:
        data, descriptors, _, _ = socket.recv_fds(control, 1, _MAX_DESCRIPTORS)
    except OSError:
        return None
    return list(descriptors) if data else None


def _to_json(value: object) -> Any:
    """Convert a value that JSON cannot represent."""
    to_list = getattr(value, "tolist", None)  # NumPy's
    if callable(to_list):
        return to_list()
    return dict(value) if isinstance(value, Mapping) else str(value)
