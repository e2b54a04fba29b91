"""The runner's view of a trial's workers on a cluster."""

from __future__ import annotations

import contextlib
import queue
import signal
import threading
from collections.abc import Callable
from typing import Any

from detcore.errors import WorkerError
from detcore.launch import OutputSink
from detcore.launch.nodes import LogCopy, RemoteWorkerGroup
from detcore.types import TrialInfo
from detcore_ray.messages import Channel

# Building a runtime environment may take longer.
_START_TIMEOUT_S = 20.0


class RayWorkerGroup(RemoteWorkerGroup):
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
        super().__init__(slots, info)
        self._channel = channel
        self._info = info
        self._log: LogCopy | None = None
        self._on_output = on_output
        self._why_gone = explain_exit
        self._is_waited_for = True
        self._start_lock = threading.Lock()
        # None once the workers have started or wait for room; an error if they cannot start.
        self._start_results: queue.SimpleQueue[str | None] = queue.SimpleQueue()
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

    def reply(self, **fields: Any) -> None:
        """Reply to rank 0 with JSON values."""
        self._channel.send_message("reply", fields=fields)

    def send_signal(self, rank: int, number: int) -> None:
        """Send a signal to a worker. SIGKILL also kills its child processes."""
        kind = "kill" if number == signal.SIGKILL else "signal"
        self._channel.send_message(kind, rank=rank, number=number)

    def release(self) -> None:
        """Wait until the driver has released the actors and the placement group."""
        self._channel.hang_up()
        self._reader.join()  # the driver closes its end of the channel
        self._channel.close()
        if self._log is not None:
            self._log.close()

    def _read_messages(self) -> None:
        for message in self._channel.read_messages():
            self._handle_message(message)
        remaining = [rank for rank in self.ranks if not rank.has_ended]
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
            self.add_event(str(fields.pop("type")), **fields)
        elif kind == "log":
            # Opened on first use: on the runner's machine, the worker itself writes the file.
            self._log = self._log or LogCopy(self._info)
            self._log.append(message["start"], message["lines"].encode("ascii"))
        elif kind == "notice":
            self._on_output(0, "stderr", f"ray: {message['text']}")
        elif kind == "waits":
            self._start_results.put(None)
        elif kind == "started":
            for rank, pid in zip(self.ranks, message["pids"], strict=True):
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
            self.ranks[message["rank"]].mark_ended(message["code"])

    def _report_loss(self, text: str) -> None:
        """Report why workers exited that could not report it themselves."""
        for line in text.splitlines():
            self._on_output(0, "stderr", f"ray: {line}")
        self.add_event("finished", state="ERROR", error=text)
