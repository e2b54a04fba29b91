"""Processes that belong together: they are signalled together, and end together."""

from __future__ import annotations

import contextlib
import math
import os
import queue
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Protocol, runtime_checkable

from detcore.contract.errors import WorkerError
from detcore.contract.launch import Line, Sink
from detcore.launch.exit_codes import EXIT_PEER_LOST, EXIT_TEMPFAIL
from detcore.launch.output_lines import Cutter, LineCutter, Pump

# Time for the others to notice by themselves, and for the one that is to blame to say why.
NOTICE_S = 2.0
GRACE_S = 5.0
# Once all are asked to end, and rank 0, which saves checkpoints, has ended.
_STOP_LINGER_S = 20.0
# After SIGTERM and SIGHUP, which a machine sends before it shuts down. A worker that waits for
# others in a framework never notices the signal.
_STOP_TIMEOUT_S = 120.0
_SHELL_SIGNAL = 128  # a shell adds the number of the signal that killed a program
# A stopped process keeps these for later: it has to be continued to receive them.
ENDING_SIGNALS = frozenset({signal.SIGHUP, signal.SIGINT, signal.SIGTERM})
_ENDED_BY_US = (-signal.SIGTERM, -signal.SIGKILL, 128 + signal.SIGTERM, 128 + signal.SIGKILL)


def find_stop_timeout_s(number: int, *, grace_s: float | None, interrupt_timeout_s: float) -> float:
    """Return how long workers may take to end after a signal, in seconds.

    Args:
        number: The signal.
        grace_s: Seconds between SIGTERM and the kill, if they are known.
        interrupt_timeout_s: Result for SIGINT, which comes from a person, who can send it twice.
    """
    if number == signal.SIGINT:
        return interrupt_timeout_s
    return _STOP_TIMEOUT_S if grace_s is None else grace_s


class WorkerProcess(Protocol):
    """A process that leads a separate session, such as a `subprocess.Popen`.

    Attributes:
        pid: Its process id.
        stdout: Its standard output, or None.
        stderr: Its standard error, or None.
    """

    @property
    def pid(self) -> int: ...

    @property
    def stdout(self) -> IO[bytes] | None: ...

    @property
    def stderr(self) -> IO[bytes] | None: ...

    def wait(self) -> int:
        """Wait for its end; return its exit code (negative: the signal that killed it)."""

    def send_signal(self, number: int, /) -> None:
        """Send it a signal, unless it has ended."""


@runtime_checkable
class RemoteProcess(WorkerProcess, Protocol):
    """A worker whose process is not of this machine, or not known by its number yet."""

    def signal_group(self, number: int, /) -> None:
        """Send a signal to it and to all that it started, unless it has ended."""


def start_process(
    command: Sequence[str],
    environment: Mapping[str, str],
    keep_open: Sequence[int] = (),
    *,
    cwd: str | Path | None,
) -> subprocess.Popen[bytes]:
    """Start a process that leads a separate session and reads nothing.

    Raises:
        OSError: If it cannot be started.
    """
    return subprocess.Popen(
        command,
        cwd=cwd,
        env=environment,
        pass_fds=keep_open,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        # Ctrl-C in the terminal reaches this process only, which passes it on once.
        start_new_session=True,
    )


def describe_exit(code: int) -> str:
    """Say how a process ended: ``"ended with exit code 3"``, ``"was killed by SIGKILL"``."""
    if code >= 0:
        names = [each.name for each in signal.Signals if each == code - _SHELL_SIGNAL]
        as_after = f", as after {names[0]}" if names else ""
        return f"ended with exit code {code}{as_after}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"


class Workers:
    """The processes of one job, each in a separate session.

    When one has failed the rest have two seconds to end by themselves; then they get SIGTERM, and
    five seconds later SIGKILL. A worker that ends with 0 or 75 (come back later) has not failed,
    and the others continue.

    A signal that asks them to end also continues those that are stopped. From then on they have
    `stop_s`, and `stop_linger_s` from the end of rank 0, until they get SIGTERM and SIGKILL.

    Args:
        sink: Takes the lines that they print.
        make_cutter: Makes the cutter that splits a stream into lines.
        linger_s: How long the others may take to end when rank 0 has ended well, in seconds;
            they are ended then, which is no failure. None: as long as they like.
        stop_linger_s: The same once all were asked to end, however rank 0 ended.
        stop_s: Returns how long all may take to end after a signal, in seconds. None: as long as
            they like.
        notice_s: How long the others may take to end by themselves when one has failed.
        grace_s: Seconds between SIGTERM and SIGKILL for those that do not end by themselves.
        on_end: Called from a thread when a process has ended; `poll` tells which.
    """

    def __init__(
        self,
        sink: Sink,
        *,
        make_cutter: Callable[[], Cutter] = LineCutter,
        linger_s: float | None = None,
        stop_linger_s: float = _STOP_LINGER_S,
        stop_s: Callable[[int], float] | None = None,
        notice_s: float = NOTICE_S,
        grace_s: float = GRACE_S,
        on_end: Callable[[], None] = lambda: None,
    ) -> None:
        self._on_end = on_end
        self._make_cutter = make_cutter
        self._linger_s = linger_s
        self._stop_linger_s = stop_linger_s
        self._stop_s = stop_s
        self._notice_s = notice_s
        self._grace_s = grace_s
        self._is_asked_to_end = False
        self._sink = sink
        self._sink_lock = threading.Lock()
        self._processes: list[WorkerProcess] = []
        self._pumps: list[Pump] = []
        self._ended: queue.SimpleQueue[int] = queue.SimpleQueue()
        self._codes: dict[int, int] = {}
        self._first_failed: int | None = None
        self._end_at: float | None = None
        self._kill_at: float | None = None

    def start(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        *,
        cwd: str | Path | None = None,
        keep_open: tuple[int, ...] = (),
    ) -> int:
        """Start the next rank; return its process id.

        Raises:
            WorkerError: If it cannot be started; those started before are ended.
        """
        rank = len(self._processes)
        try:
            process = start_process(command, environment, keep_open, cwd=cwd)
        except OSError as error:
            self.kill()
            self.close()
            raise WorkerError(f"rank {rank} ({command[0]}) did not start: {error}") from error
        return self.adopt(process)

    def adopt(self, process: WorkerProcess) -> int:
        """Supervise a process as the next rank; return its process id."""
        rank = len(self._processes)
        self._processes.append(process)
        for name, stream in (("stdout", process.stdout), ("stderr", process.stderr)):
            if stream is not None:
                self._pumps.append(Pump(stream, rank, name, self._take, self._make_cutter()))
        threading.Thread(
            target=self._wait, args=(rank, process), name=f"detcore-wait-{rank}", daemon=True
        ).start()
        return process.pid

    def _take(self, rank: int, stream: str, line: Line) -> None:
        with self._sink_lock:
            self._sink(rank, stream, line)

    def _wait(self, rank: int, process: WorkerProcess) -> None:
        process.wait()
        self._ended.put(rank)
        self._on_end()

    @property
    def pids(self) -> list[int]:
        """The process ids by rank, ended ones too."""
        return [process.pid for process in self._processes]

    @property
    def first_failed(self) -> int | None:
        """The rank that failed first, None while none has."""
        return self._first_failed

    def poll(self, timeout_s: float = 0.0) -> list[tuple[int, int]]:
        """Look after them: returns the ranks that ended since, with their codes, in that order.

        Args:
            timeout_s: How long to wait for one to end, in seconds.
        """
        news = []
        with contextlib.suppress(queue.Empty):
            rank = self._ended.get(timeout=timeout_s) if timeout_s else self._ended.get_nowait()
            while True:
                news.append((rank, self._note_end(rank)))
                rank = self._ended.get_nowait()
        now = time.monotonic()
        if self._kill_at is not None and now >= self._kill_at:
            self.kill()
        elif self._kill_at is None and self._end_at is not None and now >= self._end_at:
            self.end()
        return news

    def _note_end(self, rank: int) -> int:
        code = self._processes[rank].wait()
        self._codes[rank] = code
        # The worker's children must not outlive it, or they keep its output open.
        self._signal_group(rank, signal.SIGKILL)
        if code in (0, EXIT_TEMPFAIL):
            if rank == 0 and self._linger_s is not None:
                self._end_within(self._linger_s)
        elif self._is_to_blame(rank, code):
            self._first_failed = rank
            self._end_within(self._notice_s)
        if rank == 0 and self._is_asked_to_end:
            self._end_within(self._stop_linger_s)
        return code

    def _end_within(self, seconds: float) -> None:
        self._end_at = min(self._end_at or math.inf, time.monotonic() + seconds)

    def _is_to_blame(self, rank: int, code: int) -> bool:
        """Whether the rank that ended now, with a failure, is the reason why the job ends."""
        if self.is_ending and code in _ENDED_BY_US:
            # Without rank 0 the job did not end well, even if no worker failed by itself.
            return rank == 0 and self._first_failed is None
        if self._first_failed is None:
            return True
        # A rank that lost another one may end before that other one does.
        return self._codes[self._first_failed] == EXIT_PEER_LOST != code

    @property
    def is_alive(self) -> bool:
        """Whether any has not ended, as of the last `poll`."""
        return len(self._codes) < len(self._processes)

    @property
    def is_ending(self) -> bool:
        """Whether those that are left were asked to end."""
        return self._kill_at is not None

    def end(self) -> None:
        """Ask all to end; kill those that are still there after the grace time."""
        self._kill_at = self._kill_at or time.monotonic() + self._grace_s
        self.signal(signal.SIGTERM)

    def signal(self, number: int, *, with_children: bool = False) -> None:
        """Pass a signal on to every worker.

        Args:
            number: The signal.
            with_children: Whether to signal the workers' children as well, as a terminal does
                with Ctrl-C.
        """
        for rank, process in enumerate(self._processes):
            if rank in self._codes:
                continue
            if with_children:
                self._signal_group(rank, number)
            else:
                with contextlib.suppress(ProcessLookupError):
                    process.send_signal(number)
            # On another machine, the group that passes the signal on continues its workers.
            if number in ENDING_SIGNALS and not isinstance(process, RemoteProcess):
                self._signal_group(rank, signal.SIGCONT)
        if number in ENDING_SIGNALS:
            self._is_asked_to_end = True
            if self._stop_s is not None:
                self._end_within(self._stop_s(number))
            if 0 in self._codes:
                self._end_within(self._stop_linger_s)

    def kill(self) -> None:
        """End all workers and all they started, at once."""
        for rank in range(len(self._processes)):
            if rank not in self._codes:
                self._signal_group(rank, signal.SIGKILL)

    def _signal_group(self, rank: int, number: int) -> None:
        process = self._processes[rank]
        if isinstance(process, RemoteProcess):
            # The children of a process on another machine are ended there when it ends.
            if rank not in self._codes:
                process.signal_group(number)
            return
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, number)

    def close(self) -> int:
        """Wait for the end of all and of their output; return the code of the job.

        Returns:
            The code of the first that failed (negative: signal), else 75 if one wants to come
            back later, else 0.
        """
        while self.is_alive:
            self.poll(0.1)
        for pump in self._pumps:
            pump.join()
        if self._first_failed is not None:
            return self._codes[self._first_failed]
        return EXIT_TEMPFAIL if EXIT_TEMPFAIL in self._codes.values() else 0
