"""The runner's view of a trial's workers on a cluster."""

from __future__ import annotations

import contextlib
import queue
import signal
import threading
from collections.abc import Callable
from typing import IO, Any

from detcore.errors import WorkerError
from detcore.launch import OutputSink, WorkerEvent
from detcore.launch.nodes import LogCopy, Wake, Workers
from detcore.types import TrialInfo
from detcore_ray.messages import Channel

# As for workers on this machine: a worker may hang during the framework's shutdown.
_LINGER_S = 60.0
# Building a runtime environment may take longer.
_START_TIMEOUT_S = 20.0


class RayWorkerGroup:
    """Workers that Ray actors start; see `detcore.launch.WorkerGroup`.

    Args:
        channel: Channel to the driver process.
        slots: Number of workers.
        info: The trial.
        on_output: Called with their output.
        explain_exit: Returns the reason for the driver's exit.

    Raises:
        WorkerError: If the workers do not start.
    """

    def __init__(
        self,
        channel: Channel,
        slots: int,
        *,
        info: TrialInfo,
        on_output: OutputSink,
        explain_exit: Callable[[], str],
    ) -> None:
        self._channel = channel
        self._info = info
        self._log: LogCopy | None = None
        self._on_output = on_output
        self._why_gone = explain_exit
        self._wake = Wake()
        self._events: queue.SimpleQueue[WorkerEvent] = queue.SimpleQueue()
        self._is_alive = True
        self._is_waited_for = True
        self._start_lock = threading.Lock()
        # None once the workers have started or wait for room; an error if they cannot start.
        self._start_results: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._ranks = [_Rank(rank, channel) for rank in range(slots)]
        self._workers = Workers(
            lambda rank, stream, line: None,  # their output comes over the channel
            linger_s=_LINGER_S if info.settings.is_trial_class else None,
            on_end=self._wake.set,
        )
        for rank in self._ranks:
            self._workers.adopt(rank)
        self._reader = threading.Thread(
            target=self._read_messages, name=f"detcore-ray-trial-{info.trial_id}", daemon=True
        )
        self._reader.start()
        try:
            error = self._start_results.get(timeout=_START_TIMEOUT_S)
        except queue.Empty:
            error = None  # the runner must handle other trials
        with self._start_lock:
            self._is_waited_for = False
            with contextlib.suppress(queue.Empty):
                error = error or self._start_results.get_nowait()
        if error is not None:
            self.close()
            raise WorkerError(error)

    @property
    def pid(self) -> int:
        """Process id of rank 0 on its machine; 0 while the worker waits for placement."""
        return self._ranks[0].pid

    @property
    def pids(self) -> list[int]:
        """Process ids by rank, each on the worker's machine."""
        return [rank.pid for rank in self._ranks]

    @property
    def first_failed(self) -> int | None:
        """The rank that failed first, or None."""
        return self._workers.first_failed

    @property
    def is_alive(self) -> bool:
        """Whether a worker was running or events were pending at the last `poll`."""
        return self._is_alive

    def fileno(self) -> int:
        """Return a descriptor that becomes readable when `poll` has work."""
        return self._wake.fileno()

    def poll(self) -> list[WorkerEvent]:
        """Return the events that rank 0 sent since the last call, without waiting."""
        self._wake.clear()
        self._workers.poll()
        # Checked before reading, so that all events sent before the end are read.
        is_running = self._workers.is_alive
        events = []
        with contextlib.suppress(queue.Empty):
            while True:
                events.append(self._events.get_nowait())
        self._is_alive = is_running
        return events

    def reply(self, **fields: Any) -> None:
        """Reply to rank 0 with JSON values."""
        self._channel.send_message("reply", fields=fields)

    def signal(self, number: int = signal.SIGTERM) -> None:
        """Request a checkpoint and exit from the workers."""
        self._workers.signal(number)

    def kill(self) -> None:
        """Kill the workers and their child processes immediately."""
        self._workers.kill()

    def close(self) -> int:
        """Wait for the end, release everything, and return the exit code; see `WorkerGroup`."""
        code = self._workers.close()
        self._channel.hang_up()
        # The driver closes its end after releasing the actors and the placement group.
        self._reader.join()
        self._channel.close()
        if self._log is not None:
            self._log.close()
        self._wake.close()
        return code

    def _read_messages(self) -> None:
        for message in self._channel.read_messages():
            self._handle_message(message)
        remaining = [rank for rank in self._ranks if not rank.has_ended]
        if remaining:
            why = self._why_gone()
            self._start_results.put(why)
            self._report_loss(why)
            for rank in remaining:
                rank.mark_ended(-signal.SIGKILL)
        self._start_results.put("the workers exited before they had started")

    def _handle_message(self, message: dict[str, Any]) -> None:
        kind = message["kind"]
        if kind == "lines":
            for stream, text in message["lines"]:
                self._on_output(message["rank"], stream, text)
        elif kind == "event":
            fields = message["fields"]
            self._events.put(WorkerEvent(str(fields.pop("type")), fields))
            self._wake.set()
        elif kind == "log":
            # Opened on first use: on the runner's machine, the worker itself writes the file.
            self._log = self._log or LogCopy(self._info)
            self._log.append(message["start"], message["lines"].encode("ascii"))
        elif kind == "notice":
            self._on_output(0, "stderr", f"ray: {message['text']}")
        elif kind == "waits":
            self._start_results.put(None)
        elif kind == "started":
            for rank, pid in zip(self._ranks, message["pids"], strict=True):
                rank.pid = pid
            self._start_results.put(None)
        elif kind == "refused":
            with self._start_lock:
                if self._is_waited_for:
                    self._start_results.put(message["error"])
                    return
            self._report_loss(message["error"])
        elif kind == "lost":
            self._report_loss(message["text"])
        elif kind == "ended":
            self._ranks[message["rank"]].mark_ended(message["code"])

    def _report_loss(self, text: str) -> None:
        """Report why workers exited that could not report it themselves."""
        for line in text.splitlines():
            self._on_output(0, "stderr", f"ray: {line}")
        self._events.put(WorkerEvent("finished", {"state": "ERROR", "error": text}))


class _Rank:
    """A worker on a node, with the interface that `detcore.launch.nodes.Workers` expects."""

    stdout: IO[bytes] | None = None
    stderr: IO[bytes] | None = None

    def __init__(self, rank: int, channel: Channel) -> None:
        self.pid = 0
        self._rank = rank
        self._channel = channel
        self._code = 0
        self._has_ended = threading.Event()

    @property
    def has_ended(self) -> bool:
        return self._has_ended.is_set()

    def mark_ended(self, code: int) -> None:
        if not self.has_ended:
            self._code = code
            self._has_ended.set()

    def wait(self) -> int:
        self._has_ended.wait()
        return self._code

    def send_signal(self, number: int) -> None:
        self._channel.send_message("signal", rank=self._rank, number=number)

    def signal_group(self, number: int) -> None:
        self._channel.send_message(
            "kill" if number == signal.SIGKILL else "signal", rank=self._rank, number=number
        )
