"""Control channel between a worker and its runner: messages one way, replies the other."""

from __future__ import annotations

import json
import os
import select
import stat
import threading
import time
from collections.abc import Mapping
from typing import Any

from detcore.contract.errors import WorkerError

# Messages for displays. Later messages repeat or replace them.
_DROPPABLE = frozenset({"progress", "status"})
_READ_BYTES = 1 << 12
# Maximum time that training waits for an answer.
_ANSWER_TIMEOUT_S = 2.0


class Channel:
    """Sends messages to the runner in order, and reads its replies: one JSON object per line.

    Training neither fails nor waits because of a message. If the runner has exited, messages are
    discarded silently. While the channel is full, messages for displays are dropped and all other
    messages are queued. Durable facts are in the event log and never depend on the channel.
    Thread-safe.
    """

    def __init__(self, fd: int | None) -> None:
        """Use a socket of the process that started this one.

        Args:
            fd: One end of a socket pair. With None, or a descriptor that is not a socket, the
                channel has no runner. The descriptor is never closed, because the parent process
                chose its number.
        """
        self._fd = fd if fd is not None and _is_socket(fd) else None
        self._pending = b""
        self._sent: set[str] = set()
        self._lock = threading.Lock()
        self._reading = threading.Lock()
        self._received = b""
        self._kept: list[dict[str, Any]] = []
        self._num_questions = 0
        if self._fd is not None:
            os.set_blocking(self._fd, False)
            os.set_inheritable(self._fd, False)

    @property
    def has_runner(self) -> bool:
        """Whether the channel was created with a runner that has not been found missing since."""
        return self._fd is not None

    def send(self, type: str, **fields: Any) -> None:
        """Send a message.

        Args:
            type: ``"progress"``, ``"status"``, ``"finished"`` or another message type that the
                runner knows.
            **fields: JSON values.
        """
        line = json.dumps({"type": type, **fields}).encode() + b"\n"
        with self._lock:
            self._sent.add(type)
            self._write_pending()
            if self._fd is None:
                return
            if self._pending and type in _DROPPABLE:
                return
            self._pending += line
            self._write_pending()

    def has_sent(self, type: str) -> bool:
        """Whether this process sent a message of this type."""
        return type in self._sent

    def query(
        self, question: str, *, timeout_s: float = _ANSWER_TIMEOUT_S, **fields: Any
    ) -> Mapping[str, Any] | None:
        """Query the records through the runner.

        Args:
            question: Name of the query; see `detcore.records.answer_question`.
            timeout_s: Maximum time to wait for the answer, in seconds.
            **fields: JSON values.

        Returns:
            The answer. None if it did not arrive in time, or if the records cannot be read now.
        """
        deadline = time.monotonic() + timeout_s
        with self._reading:
            self._num_questions += 1
            number = self._num_questions
            self.send("question", question=question, number=number, fields=fields)
            while (reply := self._read_reply(deadline)) is not None:
                if reply["type"] != "answer":
                    self._kept.append(reply)
                elif reply["number"] == number:
                    answer: Mapping[str, Any] | None = reply["answer"]
                    return answer
        return None

    def wait_for_length(self) -> int | None:
        """Wait for the search method's next length; None means that training is over.

        Raises:
            WorkerError: If the runner has exited.
        """
        self._flush_pending()
        with self._reading:
            while True:
                reply = self._kept.pop(0) if self._kept else self._read_reply(None)
                if reply is None:
                    raise WorkerError(
                        "the runner of this trial has exited, so the next length is unknown.\n"
                        "Resume the experiment with:  detcore run --resume ID"
                    )
                if reply["type"] != "answer":  # an answer after its timeout
                    return int(reply["length"]) if reply["type"] == "train" else None

    def close(self, timeout_s: float = 1.0) -> None:
        """Wait up to `timeout_s` seconds until the runner has read the pending messages."""
        deadline = time.monotonic() + timeout_s
        with self._lock:
            while self._pending and self._fd is not None:
                remaining_s = deadline - time.monotonic()
                if remaining_s <= 0:
                    break
                select.select([], [self._fd], [], remaining_s)
                self._write_pending()
            self._fd = None  # its number may be reused for another file

    def _flush_pending(self) -> None:
        """Wait until all messages are in the socket, or the runner has exited."""
        while True:
            with self._lock:
                self._write_pending()
                if not self._pending or self._fd is None:
                    return
                fd = self._fd
            select.select([], [fd], [], 0.1)

    def _read_reply(self, deadline: float | None) -> dict[str, Any] | None:
        """Return the next reply; None at the deadline, or if the runner has exited."""
        while b"\n" not in self._received:
            remaining_s = None if deadline is None else max(0.0, deadline - time.monotonic())
            fd = self._fd
            if fd is None or not select.select([fd], [], [], remaining_s)[0]:
                return None
            try:
                data = os.read(fd, _READ_BYTES)
            except BlockingIOError:
                continue
            except OSError:  # ECONNRESET: the runner was killed with messages unread
                return None
            if not data:
                return None
            self._received += data
        line, _, self._received = self._received.partition(b"\n")
        reply: dict[str, Any] = json.loads(line)
        return reply

    def _write_pending(self) -> None:
        while self._pending and self._fd is not None:
            try:
                num_bytes = os.write(self._fd, self._pending)
            except BlockingIOError:
                return
            except OSError:  # EPIPE: the runner has exited; training continues until it is stopped
                self._fd = None
                self._pending = b""
                return
            self._pending = self._pending[num_bytes:]


def _is_socket(fd: int) -> bool:
    """Whether a descriptor is an open socket."""
    try:
        return stat.S_ISSOCK(os.fstat(fd).st_mode)
    except OSError:
        return False
