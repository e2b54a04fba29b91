"""Ask a rank for its current line while it is busy elsewhere."""

from __future__ import annotations

import contextlib
import select
import socket
import sys
import threading
import time
import weakref
from collections.abc import Iterable, Mapping

from detcore.distributed.rank_failures import place_of
from detcore.distributed.wire import ANSWER, ASK, LinkLost, RankChannel

_ANSWER_TIMEOUT_S = 1.0
_POLL_INTERVAL_S = 5.0
_LENGTH = 4096
SILENT = "silent: stopped, or long in code that holds Python's lock"


class Answerer:
    """A thread that answers questions for the current line of another thread of this process.

    Args:
        channel: A dedicated connection; owned by this object from here on.
    """

    def __init__(self, channel: RankChannel) -> None:
        self.thread_id = threading.get_ident()
        self._channel = channel
        self._thread = threading.Thread(
            target=_answer, args=(channel, weakref.ref(self)), daemon=True, name="detcore-line"
        )
        self._thread.start()

    def close(self) -> None:
        """End the thread."""
        with contextlib.suppress(OSError):
            self._channel.socket.shutdown(socket.SHUT_RDWR)
        if self._thread is not threading.current_thread():
            self._thread.join()
        self._channel.close()


def _answer(channel: RankChannel, reference: weakref.ref[Answerer]) -> None:
    with contextlib.suppress(LinkLost):
        while True:
            asked = channel.wait(time.monotonic() + _POLL_INTERVAL_S)
            answerer = reference()
            if answerer is None or (asked is not None and asked.kind != ASK):
                return
            if asked is not None:
                frame = sys._current_frames().get(answerer.thread_id)
                place = f"at {place_of(frame)}"[:_LENGTH]
                del frame
                channel.send(ANSWER, {"place": place}, deadline=time.monotonic() + _POLL_INTERVAL_S)
            del answerer


def ask(channels: Mapping[int, RankChannel], indices: Iterable[int]) -> dict[int, str]:
    """Return the current lines of ranks as text, for those that can be asked."""
    asked: dict[int, int] = {}
    poller = select.poll()
    for index in indices:
        if index in channels:
            with contextlib.suppress(LinkLost):
                channels[index].send(ASK, {}, deadline=time.monotonic() + _ANSWER_TIMEOUT_S)
                poller.register(channels[index], select.POLLIN)
                asked[channels[index].fileno()] = index
    answers = dict.fromkeys(asked.values(), SILENT)
    deadline = time.monotonic() + _ANSWER_TIMEOUT_S
    while asked and (remaining := deadline - time.monotonic()) > 0:
        for descriptor, _ in poller.poll(remaining * 1000):
            index = asked[descriptor]
            try:
                frame = channels[index].receive()
                if frame is None:
                    continue
                answers[index] = str(frame.meta.get("place", SILENT))[:_LENGTH]
            except LinkLost:
                answers[index] = SILENT
            poller.unregister(descriptor)
            del asked[descriptor]
    return answers
