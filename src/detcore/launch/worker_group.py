"""The runner's view of the workers of a trial, on this machine and on other machines."""

from __future__ import annotations

import contextlib
import functools
import os
import queue
import signal
import threading
from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import IO, Any

from detcore.contract.launch import WorkerEvent, WorkerGroup
from detcore.contract.values import TrialInfo
from detcore.launch.worker_processes import Workers

# The workers of a trial class end together, but a worker may hang while its framework shuts down.
_LINGER_S = 60.0


class Wake:
    """A pipe with which a thread ends the wait of another thread."""

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
        """Make the descriptor readable; from any thread, also after `close`."""
        with self._lock, contextlib.suppress(BlockingIOError):
            if not self._is_closed:
                os.write(self._write_fd, b"\0")

    def clear(self) -> None:
        """Make the descriptor unreadable."""
        with contextlib.suppress(BlockingIOError):
            while os.read(self._read_fd, 1024):
                pass

    def close(self) -> None:
        """Close the pipe."""
        with self._lock:
            self._is_closed = True
            for descriptor in (self._read_fd, self._write_fd):
                os.close(descriptor)


def find_linger_s(info: TrialInfo) -> float | None:
    """Return the seconds that workers may run after rank 0 has ended successfully."""
    return _LINGER_S if info.settings.is_trial_class else None


class SupervisedGroup(WorkerGroup):
    """Base of worker groups whose processes `Workers` supervises.

    Args:
        workers: The processes. They set `wake` when a process has exited.
        wake: Readable when a process has exited; closed with the group.
    """

    def __init__(self, workers: Workers, wake: Wake) -> None:
        self._workers = workers
        self._wake = wake
        self._is_alive = True

    @abstractmethod
    def read_events(self) -> list[WorkerEvent]:
        """Return the events of rank 0 since the last call, without waiting."""

    @abstractmethod
    def release(self) -> None:
        """Release resources, after all workers have ended."""

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
        return self._wake.fileno()

    def poll(self) -> list[WorkerEvent]:
        self._wake.clear()
        self._workers.poll()
        # Checked before reading, so that all events sent before the end are read.
        is_running = self._workers.is_alive
        events = self.read_events()
        self._is_alive = is_running
        return events

    def signal(self, number: int = signal.SIGTERM) -> None:
        self._workers.signal(number)

    def kill(self) -> None:
        self._workers.kill()

    def close(self) -> int:
        code = self._workers.close()
        self.release()
        self._wake.close()
        return code


class RemoteRank:
    """A worker on another machine; a `RemoteProcess`.

    Args:
        send_signal: Sends a signal to the worker. SIGKILL also kills its child processes.

    Attributes:
        pid: Process id on its machine; 0 before it has started.
    """

    stdout: IO[bytes] | None = None
    stderr: IO[bytes] | None = None

    def __init__(self, send_signal: Callable[[int], None]) -> None:
        self.pid = 0
        self._send_signal = send_signal
        self._code = 0
        self._has_ended = threading.Event()

    @property
    def has_ended(self) -> bool:
        """Whether the worker has exited, as far as this machine knows."""
        return self._has_ended.is_set()

    def mark_ended(self, code: int) -> None:
        """Record the exit code of the worker; from any thread. Later codes are ignored."""
        if not self.has_ended:
            self._code = code
            self._has_ended.set()

    def wait(self) -> int:
        """Wait for the exit, and return the exit code."""
        self._has_ended.wait()
        return self._code

    def send_signal(self, number: int) -> None:
        """Send a signal to the worker."""
        self._send_signal(number)

    def signal_group(self, number: int) -> None:
        """Send a signal to the worker and its descendants."""
        self._send_signal(number)


class RemoteWorkerGroup(SupervisedGroup):
    """Base of worker groups on other machines.

    A subclass receives messages about the workers, from any thread. It calls `add_event` for their
    events, sets `RemoteRank.pid`, and calls `RemoteRank.mark_ended`.

    Args:
        slots: Number of workers.
        info: The trial.

    Attributes:
        ranks: The workers.
    """

    def __init__(self, slots: int, info: TrialInfo) -> None:
        wake = Wake()
        self._events: queue.SimpleQueue[WorkerEvent] = queue.SimpleQueue()
        self.ranks: Sequence[RemoteRank] = [
            RemoteRank(functools.partial(self.send_signal, rank)) for rank in range(slots)
        ]
        workers = Workers(
            lambda rank, stream, line: None,  # their output comes in messages
            linger_s=find_linger_s(info),
            on_end=wake.set,
        )
        for rank in self.ranks:
            workers.adopt(rank)
        super().__init__(workers, wake)

    @abstractmethod
    def send_signal(self, rank: int, number: int) -> None:
        """Send a signal to a worker. SIGKILL also kills its child processes."""

    def add_event(self, kind: str, /, **fields: Any) -> None:
        """Add an event that `poll` returns; from any thread."""
        self._events.put(WorkerEvent(kind, fields))
        self._wake.set()

    def read_events(self) -> list[WorkerEvent]:
        """Return the events that were added since the last call."""
        events = []
        with contextlib.suppress(queue.Empty):
            while True:
                events.append(self._events.get_nowait())
        return events
