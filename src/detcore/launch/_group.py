"""The running workers of a trial, as their runner sees them."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import signal
import socket
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from detcore.launch._job import LocalJob
from detcore.launch._workers import Workers
from detcore.types import TrialInfo

__all__ = [
    "Launcher",
    "LocalWorkerGroup",
    "OutputSink",
    "SupportsCheck",
    "Wake",
    "WorkerEvent",
    "WorkerGroup",
]

_READ_BYTES = 1 << 16


@dataclasses.dataclass(frozen=True, slots=True)
class WorkerEvent:
    """An event that a worker reported: a ``type`` and its fields."""

    type: str
    fields: Mapping[str, Any]


class OutputSink(Protocol):
    """Takes what workers print; called from threads, for one group one at a time."""

    def __call__(self, rank: int, stream: str, line: str, /) -> None:
        """Take a line that rank `rank` wrote to ``"stdout"`` or ``"stderr"``."""


class WorkerGroup(Protocol):
    """The running workers of a trial: the events of rank 0, its replies, their end.

    When one worker fails (ends with another code than 0 and 75) the others are ended: first they
    are given a moment to end by themselves, then asked with SIGTERM, then killed. One that ends
    with 0 or 75 has not failed, and the others continue. A worker's children end when it does.
    All of that happens within `poll` and `close`, which are called from one thread.

    Attributes:
        pid: The process id of rank 0; 0 before it has started.
        pids: The process ids by rank; 0 for a worker that has not started.
        first_failed: The rank that failed first, None while none has.
        is_alive: Whether a worker is running, or `poll` has not returned all events yet. As of
            the last `poll`.
    """

    @property
    def pid(self) -> int: ...

    @property
    def pids(self) -> list[int]: ...

    @property
    def first_failed(self) -> int | None: ...

    @property
    def is_alive(self) -> bool: ...

    def fileno(self) -> int:
        """Return a descriptor that is readable when `poll` has something to do.

        It may be another one after each `poll`: ask again before each wait. A wait should end after
        0.1 s at the latest, for workers that have to be ended.
        """

    def poll(self) -> list[WorkerEvent]:
        """Return the events that rank 0 sent since the last call, in order, without waiting."""

    def reply(self, **fields: Any) -> None:
        """Answer rank 0, which waits for a line on its channel; JSON values.

        Nothing happens if it is gone.
        """

    def signal(self, number: int = signal.SIGTERM) -> None:
        """Send a signal to every worker that runs: SIGTERM asks it to checkpoint and come back."""

    def kill(self) -> None:
        """End the workers and all they started, at once."""

    def close(self) -> int:
        """Wait for the end, release everything, and return the exit code.

        All that the workers printed was handed to `OutputSink` when it returns.

        Returns:
            The code of the worker that failed first (negative: signal), else 75 if one wants to
            come back later, else 0.
        """


class Launcher(Protocol):
    """Starts workers of trials; closed when the runner needs no more.

    Every worker runs ``python -m detcore.launch.worker`` (`detcore.launch.worker.main`) in the
    folder ``info.model_dir``, leads a separate session, reads nothing (its standard input is
    empty), and gets these variables in addition to those of the launching process:

    ``DETCORE_TRIAL_INFO``
        Path of a file that holds `info` as a JSON object; only its owner may read it.
    ``DETCORE_HOME``
        `home`.
    ``DETCORE_RANK``, ``DETCORE_SIZE``, ``DETCORE_LOCAL_RANK``, ``DETCORE_LOCAL_SIZE``,
    ``DETCORE_CROSS_RANK``, ``DETCORE_CROSS_SIZE``
        Its place among the workers: of all, of its machine, and its machine's among the machines.
    ``DETCORE_JOB_KEY``
        A secret that the workers of one trial share, and no others; new for each start.
    ``DETCORE_CHANNEL_FD``
        The descriptor of one end of a stream socket pair whose other end only the launching process
        holds. Rank 0 writes its messages there (a JSON object with ``type`` per line) and reads
        the answers of `WorkerGroup.reply`. Every worker ends its process group when the other end
        closes, so no worker outlives a launching process that was killed.
    ``DETCORE_DISABLE_PLUGINS``, ``DETCORE_PLUGINS``
        `disabled_plugins` and, unless it is None, `allowed_plugins`, separated by commas.
    """

    def start(
        self,
        info: TrialInfo,
        *,
        home: Path,
        slots: int = 1,
        keep_open: tuple[int, ...] = (),
        on_output: OutputSink,
        disabled_plugins: frozenset[str] = frozenset(),
        allowed_plugins: frozenset[str] | None = None,
        variables: Mapping[str, str] | None = None,
    ) -> WorkerGroup:
        """Start the workers of a trial; they end when this process does, however that happens.

        Args:
            info: Which trial they run; its log has been created.
            home: The folder of records and default checkpoints.
            slots: Number of workers; >= 1.
            keep_open: File descriptors that rank 0 inherits (the experiment's lock).
            on_output: Called from threads, for one group one at a time, with the rank,
                ``"stdout"`` or ``"stderr"``, and each line without its end. Bytes that are not
                UTF-8 are replaced. For a line that is rewritten (a progress bar), some of its
                states may be passed as well.
            disabled_plugins: Plugins that are switched off in the workers too.
            allowed_plugins: The only plugins that are on, or None for all.
            variables: More variables for all workers.

        Raises:
            WorkerError: If a worker cannot be started; none is left then.
        """

    def close(self) -> None:
        """Release resources kept between trials; close the groups that it started before."""


@runtime_checkable
class SupportsCheck(Protocol):
    """A launcher that knows before a run begins which trials it can never start."""

    def check_trial(self, config: Mapping[str, Any], *, slots: int) -> None:
        """Refuse trials that could not be started; called once, before anything is recorded.

        Trials that only have to wait are not refused.

        Args:
            config: The experiment's configuration.
            slots: Number of workers of each trial; >= 1.

        Raises:
            WorkerError: If a trial could not be started; it says why.
        """


class LocalWorkerGroup:
    """Workers that are processes of this machine; see `WorkerGroup`.

    Args:
        workers: The processes; they call `wake` when one has ended.
        job: Lets them find each other; closed with the group. None: the caller sees to that.
        channels: The runner's ends of the workers' channels, by rank; closed with the group.
        wake: Readable when a process has ended.
    """

    def __init__(
        self,
        workers: Workers,
        job: LocalJob | None,
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
        """The process id of rank 0."""
        return self._workers.pids[0]

    @property
    def pids(self) -> list[int]:
        """The process ids by rank."""
        return self._workers.pids

    @property
    def first_failed(self) -> int | None:
        """The rank that failed first, None while none has."""
        return self._workers.first_failed

    @property
    def is_alive(self) -> bool:
        """Whether a worker is running or events were not returned yet; as of the last `poll`."""
        return self._is_alive

    def fileno(self) -> int:
        """Return a descriptor that is readable when `poll` has something to do; may change."""
        # At its end the channel would be readable all the time.
        return self._chief.fileno() if self._is_open else self._wake.fileno()

    def poll(self) -> list[WorkerEvent]:
        """Return the events that rank 0 sent since the last call, without waiting."""
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
        """Answer rank 0, which waits for a line on its channel; JSON values."""
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
        """Ask the workers to checkpoint and come back later."""
        self._workers.signal(number)

    def kill(self) -> None:
        """End the workers and all they started, at once."""
        self._workers.kill()

    def close(self) -> int:
        """Wait for the end, release everything, and return the exit code; see `WorkerGroup`."""
        code = self._workers.close()
        if self._job is not None:
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
