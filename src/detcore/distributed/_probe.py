"""Asking a rank of this machine which line it is at, while it is busy elsewhere."""

from __future__ import annotations

import contextlib
import select
import socket
import sys
import threading
import time
import weakref
from collections.abc import Iterable, Mapping

from detcore.distributed._failure import place_of
from detcore.distributed._wire import close_in_forks

__all__ = ["Answerer", "ask"]

_PATIENCE_S = 0.3
_LENGTH = 4096
SILENT = "silent: stopped, or long in code that holds Python's lock"


class Answerer:
    """A thread that says where another thread of this process is, whenever it is asked.

    Args:
        descriptor: This rank's end of a pair of sockets; owned from here on.
    """

    def __init__(self, descriptor: int) -> None:
        self.thread_id = threading.get_ident()
        self._socket = socket.socket(fileno=descriptor)
        close_in_forks(self._socket)
        self._thread = threading.Thread(
            target=_answer, args=(self._socket, weakref.ref(self)), daemon=True, name="detcore-line"
        )
        self._thread.start()

    def close(self) -> None:
        """End the thread."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._socket.close()


def _answer(connection: socket.socket, reference: weakref.ref[Answerer]) -> None:
    with contextlib.suppress(OSError):
        while connection.recv(1):
            answerer = reference()
            if answerer is None:
                return
            frame = sys._current_frames().get(answerer.thread_id)
            del answerer
            connection.send(f"at {place_of(frame)}".encode()[:_LENGTH])
            del frame


def ask(sockets: Mapping[int, socket.socket], indices: Iterable[int]) -> dict[int, str]:
    """Return where ranks are now, in words; only for those that can be asked."""
    asked: dict[int, int] = {}
    poller = select.poll()
    for index in indices:
        if index in sockets:
            with contextlib.suppress(OSError):
                sockets[index].send(b"?")
                poller.register(sockets[index], select.POLLIN)
                asked[sockets[index].fileno()] = index
    answers = dict.fromkeys(asked.values(), SILENT)
    deadline = time.monotonic() + _PATIENCE_S
    while asked and (remaining := deadline - time.monotonic()) > 0:
        for descriptor, _ in poller.poll(remaining * 1000):
            index = asked.pop(descriptor)
            poller.unregister(descriptor)
            with contextlib.suppress(OSError):
                answers[index] = sockets[index].recv(_LENGTH).decode(errors="replace") or SILENT
    return answers
