"""The running workers of a trial, as their runner sees them."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import threading
from collections.abc import Iterator, Sequence
from typing import Any

from detcore.contract.launch import WorkerEvent, WorkerGroup
from detcore.launch._job import LocalJob
from detcore.launch._workers import Workers

_READ_BYTES = 1 << 16


class LocalWorkerGroup(WorkerGroup):
    """Workers that are processes of this machine; see `WorkerGroup`.

    Args:
        workers: The processes; they call `wake` when one has ended.
        job: Lets them find each other; closed with the group.
        channels: The runner's ends of the workers' channels, by rank; closed with the group.
        wake: Readable when a process has ended.
    """

    def __init__(
        self,
        workers: Workers,
        job: LocalJob,
        *,
        channels: Sequence[socket.socket],
        wake: Wake,
    ) -> None:
        self._workers = workers
        self._job = job
        self._channels = channels
        self._chief = channels[0]
        self._wake = wake
        self._buffer = b""
        self._unsent = b""
        self._is_open = True
        self._is_alive = True
        self._chief.setblocking(False)

    @property
    def pid(self) -> int:
        return self._workers.pids[0]

    @property
    def pids(self) -> list[int]:
        return self._workers.pids

    @property
    def first_failed(self) -> int | None:
        return self._workers.first_failed

    @property
    def is_alive(self) -> bool:
        return self._is_alive

    def fileno(self) -> int:
        # At its end the channel would be readable all the time.
        return self._chief.fileno() if self._is_open else self._wake.fileno()

    def poll(self) -> list[WorkerEvent]:
        self._wake.clear()
        self._workers.poll()
        # Checked before reading, so that all events sent before the end are read.
        is_running = self._workers.is_alive
        events: list[WorkerEvent] = []
        while self._is_open:
            try:
                data = self._chief.recv(_READ_BYTES)
            except BlockingIOError:
                break
            except ConnectionResetError:  # it ended with answers unread
                data = b""
            self._is_open = bool(data)
            events += self._parse(data)
        self._is_alive = is_running
        self._send_replies()
        return events

    def _parse(self, data: bytes) -> Iterator[WorkerEvent]:
        *lines, self._buffer = (self._buffer + data).split(b"\n")
        for line in lines:
            fields = json.loads(line)
            yield WorkerEvent(str(fields.pop("type")), fields)

    def reply(self, **fields: Any) -> None:
        self._unsent += json.dumps(fields).encode() + b"\n"
        self._send_replies()

    def _send_replies(self) -> None:
        """Send as much as the channel has room for; the next `poll` sends the rest."""
        try:
            while self._unsent:
                self._unsent = self._unsent[self._chief.send(self._unsent) :]
        except BlockingIOError:
            pass
        except (BrokenPipeError, ConnectionResetError):
            self._unsent = b""  # the worker is gone

    def signal(self, number: int = signal.SIGTERM) -> None:
        self._workers.signal(number)

    def kill(self) -> None:
        self._workers.kill()

    def close(self) -> int:
        code = self._workers.close()
        self._job.close()
        self._wake.close()
        for channel in self._channels:
            channel.close()
        return code


class Wake:
    """A pipe that one thread writes to so that another one stops waiting."""

    def __init__(self) -> None:
        self._read_fd, self._write_fd = os.pipe()
        self._lock = threading.Lock()
        self._is_closed = False
        os.set_blocking(self._read_fd, False)
        os.set_blocking(self._write_fd, False)

    def fileno(self) -> int:
        """Return the descriptor that is readable after `set`."""
        return self._read_fd

    def set(self) -> None:
        """Make it readable; from any thread, also after `close`."""
        with self._lock, contextlib.suppress(BlockingIOError):
            if not self._is_closed:
                os.write(self._write_fd, b"\0")

    def clear(self) -> None:
        """Make it unreadable."""
        with contextlib.suppress(BlockingIOError):
            while os.read(self._read_fd, 1024):
                pass

    def close(self) -> None:
        """Release it."""
        with self._lock:
            self._is_closed = True
            for descriptor in (self._read_fd, self._write_fd):
                os.close(descriptor)
