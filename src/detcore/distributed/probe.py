"""Request the current code location of a rank while it is busy."""

from __future__ import annotations

import contextlib
import select
import socket
import sys
import threading
import time
import weakref
from collections.abc import Iterable, Mapping

from detcore.distributed.rank_failures import describe_location
from detcore.distributed.wire import ANSWER, ASK, LinkLostError, RankChannel

_ANSWER_TIMEOUT_S = 1.0
_POLL_INTERVAL_S = 5.0
_LENGTH = 4096
SILENT = "silent: stopped, or busy in code that holds Python's lock"


class Answerer:
    """A thread that answers requests for the current line of another thread of this process.

    Args:
        channel: A dedicated connection. This object takes ownership of it.
    """

    def __init__(self, channel: RankChannel) -> None:
        self.thread_id = threading.get_ident()
        self._channel = channel
        self._thread = threading.Thread(
            target=_answer_requests,
            args=(channel, weakref.ref(self)),
            daemon=True,
            name="detcore-line",
        )
        self._thread.start()

    def close(self) -> None:
        """End the thread."""
        with contextlib.suppress(OSError):
            self._channel.socket.shutdown(socket.SHUT_RDWR)
        if self._thread is not threading.current_thread():
            self._thread.join()
        self._channel.close()


def _answer_requests(channel: RankChannel, reference: weakref.ref[Answerer]) -> None:
    with contextlib.suppress(LinkLostError):
        while True:
            request = channel.wait(time.monotonic() + _POLL_INTERVAL_S)
            answerer = reference()
            if answerer is None or (request is not None and request.kind != ASK):
                return
            if request is not None:
                frame = sys._current_frames().get(answerer.thread_id)
                place = f"at {describe_location(frame)}"[:_LENGTH]
                del frame
                channel.send(ANSWER, {"place": place}, deadline=time.monotonic() + _POLL_INTERVAL_S)
            del answerer


def query_locations(channels: Mapping[int, RankChannel], indices: Iterable[int]) -> dict[int, str]:
    """Return the current code locations of the ranks that have a connection."""
    pending: dict[int, int] = {}
    poller = select.poll()
    for index in indices:
        if index in channels:
            with contextlib.suppress(LinkLostError):
                channels[index].send(ASK, {}, deadline=time.monotonic() + _ANSWER_TIMEOUT_S)
                poller.register(channels[index], select.POLLIN)
                pending[channels[index].fileno()] = index
    answers = dict.fromkeys(pending.values(), SILENT)
    deadline = time.monotonic() + _ANSWER_TIMEOUT_S
    while pending and (remaining := deadline - time.monotonic()) > 0:
        for descriptor, _ in poller.poll(remaining * 1000):
            index = pending[descriptor]
            try:
                frame = channels[index].receive()
                if frame is None:
                    continue
                answers[index] = str(frame.meta.get("place", SILENT))[:_LENGTH]
            except LinkLostError:
                answers[index] = SILENT
            poller.unregister(descriptor)
            del pending[descriptor]
    return answers
