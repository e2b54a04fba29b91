"""The workers of a trial on a cluster, as the runner sees them."""

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
from detcore_ray.messages import Line

# As with workers of this machine: one may hang while it takes its framework down.
_LINGER_S = 60.0
# Such as for a runtime environment that is being built.
_START_TIMEOUT_S = 20.0


class RayWorkerGroup:
    """Workers that are actors' children; see `detcore.launch.WorkerGroup`.

    Args:
        line: To the process that speaks to Ray.
        slots: How many workers.
        info: The trial.
        on_output: Takes their output.
        why_gone: Returns why the other process ended, once it is gone.

    Raises:
        WorkerError: If they do not start.
    """

    def __init__(
        self,
        line: Line,
        slots: int,
        *,
        info: TrialInfo,
        on_output: OutputSink,
        why_gone: Callable[[], str],
    ) -> None:
        self._line = line
        self._info = info
        self._log: LogCopy | None = None
        self._on_output = on_output
        self._why_gone = why_gone
        self._wake = Wake()
        self._events: queue.SimpleQueue[WorkerEvent] = queue.SimpleQueue()
        self._is_alive = True
        self._is_waited_for = True
        self._begin_lock = threading.Lock()
        # Whether they have started, or may take long to; an error where they never will.
        self._begun: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._ranks = [_Rank(rank, line) for rank in range(slots)]
        self._workers = Workers(
            lambda rank, stream, line: None,  # their output comes over the line
            linger_s=_LINGER_S if info.settings.is_trial_class else None,
            on_end=self._wake.set,
        )
        for rank in self._ranks:
            self._workers.adopt(rank)
        self._reader = threading.Thread(
            target=self._read, name=f"detcore-ray-trial-{info.trial_id}", daemon=True
        )
        self._reader.start()
        try:
            error = self._begun.get(timeout=_START_TIMEOUT_S)
        except queue.Empty:
            error = None  # the runner has other trials to look after
        with self._begin_lock:
            self._is_waited_for = False
            with contextlib.suppress(queue.Empty):
                error = error or self._begun.get_nowait()
        if error is not None:
            self.close()
            raise WorkerError(error)

    @property
    def pid(self) -> int:
        """The process id of rank 0, on its machine; 0 while it waits to be placed."""
        return self._ranks[0].pid

    @property
    def pids(self) -> list[int]:
        """The process ids by rank, each of its machine."""
        return [rank.pid for rank in self._ranks]

    @property
    def first_failed(self) -> int | None:
        """The rank that failed first, None while none has."""
        return self._workers.first_failed

    @property
    def is_alive(self) -> bool:
        """Whether a worker is running or events were not returned yet; as of the last `poll`."""
        return self._is_alive

    def fileno(self) -> int:
        """Return a descriptor that is readable when `poll` has something to do."""
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
        """Answer rank 0, which waits for a line on its channel; JSON values."""
        self._line.say("reply", fields=fields)

    def signal(self, number: int = signal.SIGTERM) -> None:
        """Ask the workers to checkpoint and come back later."""
        self._workers.signal(number)

    def kill(self) -> None:
        """End the workers and all they started, at once."""
        self._workers.kill()

    def close(self) -> int:
        """Wait for the end, release everything, and return the exit code; see `WorkerGroup`."""
        code = self._workers.close()
        self._line.hang_up()
        # The other end is closed when actors and placement group are gone.
        self._reader.join()
        self._line.close()
        if self._log is not None:
            self._log.close()
        self._wake.close()
        return code

    def _read(self) -> None:
        for said in self._line.heard():
            self._take(said)
        left = [rank for rank in self._ranks if not rank.has_ended]
        if left:
            why = self._why_gone()
            self._begun.put(why)
            self._tell_loss(why)
            for rank in left:
                rank.end(-signal.SIGKILL)
        self._begun.put("the workers ended before they had begun")

    def _take(self, said: dict[str, Any]) -> None:
        kind = said["kind"]
        if kind == "lines":
            for stream, text in said["lines"]:
                self._on_output(said["rank"], stream, text)
        elif kind == "event":
            fields = said["fields"]
            self._events.put(WorkerEvent(str(fields.pop("type")), fields))
            self._wake.set()
        elif kind == "log":
            # Only now: on the runner's machine the worker itself holds the file.
            self._log = self._log or LogCopy(self._info)
            self._log.append(said["start"], said["lines"].encode("ascii"))
        elif kind == "notice":
            self._on_output(0, "stderr", f"ray: {said['text']}")
        elif kind == "waits":
            self._begun.put(None)
        elif kind == "started":
            for rank, pid in zip(self._ranks, said["pids"], strict=True):
                rank.pid = pid
            self._begun.put(None)
        elif kind == "refused":
            with self._begin_lock:
                if self._is_waited_for:
                    self._begun.put(said["error"])
                    return
            self._tell_loss(said["error"])
        elif kind == "lost":
            self._tell_loss(said["text"])
        elif kind == "ended":
            self._ranks[said["rank"]].end(said["code"])

    def _tell_loss(self, text: str) -> None:
        """Say why workers ended that could not say it themselves."""
        for line in text.splitlines():
            self._on_output(0, "stderr", f"ray: {line}")
        self._events.put(WorkerEvent("finished", {"state": "ERROR", "error": text}))


class _Rank:
    """A worker on some node, as `detcore.launch.nodes.Workers` looks after it."""

    stdout: IO[bytes] | None = None
    stderr: IO[bytes] | None = None

    def __init__(self, rank: int, line: Line) -> None:
        self.pid = 0
        self._rank = rank
        self._line = line
        self._code = 0
        self._has_ended = threading.Event()

    @property
    def has_ended(self) -> bool:
        return self._has_ended.is_set()

    def end(self, code: int) -> None:
        if not self.has_ended:
            self._code = code
            self._has_ended.set()

    def wait(self) -> int:
        self._has_ended.wait()
        return self._code

    def send_signal(self, number: int) -> None:
        self._line.say("signal", rank=self._rank, number=number)

    def signal_group(self, number: int) -> None:
        self._line.say(
            "kill" if number == signal.SIGKILL else "signal", rank=self._rank, number=number
        )
