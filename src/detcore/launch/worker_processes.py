"""Supervise the worker processes of one job: they receive signals together and end together."""

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

# Time for the remaining workers to notice a failure, and for the failed worker to report it.
NOTICE_S = 2.0
GRACE_S = 5.0
# Time for the remaining workers after a stop request and the exit of rank 0, which saves
# checkpoints.
_STOP_LINGER_S = 20.0
# Time after SIGTERM and SIGHUP, which a machine sends before it shuts down. A worker that waits for
# other workers in a framework never notices the signal.
_STOP_TIMEOUT_S = 120.0
_SHELL_SIGNAL = 128  # a shell adds the number of the signal that killed a program
# A stopped process receives these signals only after SIGCONT.
ENDING_SIGNALS = frozenset({signal.SIGHUP, signal.SIGINT, signal.SIGTERM})
_ENDED_BY_US = (-signal.SIGTERM, -signal.SIGKILL, 128 + signal.SIGTERM, 128 + signal.SIGKILL)


def find_stop_timeout_s(number: int, *, grace_s: float | None, interrupt_timeout_s: float) -> float:
    """Return the number of seconds that workers may use to exit after a signal.

    Args:
        number: The signal.
        grace_s: Seconds between SIGTERM and the kill, or None if unknown.
        interrupt_timeout_s: Result for SIGINT. A person who does not want to wait sends it twice.
    """
    if number == signal.SIGINT:
        return interrupt_timeout_s
    return _STOP_TIMEOUT_S if grace_s is None else grace_s


class WorkerProcess(Protocol):
    """A process that leads a separate session, such as a `subprocess.Popen`.

    Attributes:
        pid: Process id.
        stdout: Standard output of the process, or None.
        stderr: Standard error of the process, or None.
    """

    @property
    def pid(self) -> int: ...

    @property
    def stdout(self) -> IO[bytes] | None: ...

    @property
    def stderr(self) -> IO[bytes] | None: ...

    def wait(self) -> int:
        """Wait for the exit, and return the exit code (negative: the signal that killed it)."""

    def send_signal(self, number: int, /) -> None:
        """Send a signal to the process, unless it has exited."""


@runtime_checkable
class RemoteProcess(WorkerProcess, Protocol):
    """A worker on another machine, or one whose process id is not known yet."""

    def signal_group(self, number: int, /) -> None:
        """Send a signal to the process and its descendants, unless it has exited."""


def start_process(
    command: Sequence[str],
    environment: Mapping[str, str],
    keep_open: Sequence[int] = (),
    *,
    cwd: str | Path | None,
) -> subprocess.Popen[bytes]:
    """Start a process that leads a separate session and has an empty standard input.

    Raises:
        OSError: If the process cannot be started.
    """
    return subprocess.Popen(
        command,
        cwd=cwd,
        env=environment,
        pass_fds=keep_open,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        # Ctrl-C in the terminal reaches only this process, which passes it on once.
        start_new_session=True,
    )


def describe_exit(code: int) -> str:
    """Describe an exit: ``"ended with exit code 3"`` or ``"was killed by SIGKILL"``."""
    if code >= 0:
        names = [member.name for member in signal.Signals if member == code - _SHELL_SIGNAL]
        hint = f", as after {names[0]}" if names else ""
        return f"ended with exit code {code}{hint}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"


class Workers:
    """The processes of one job, each in a separate session.

    When a worker fails, the remaining workers have two seconds to exit. Then they get SIGTERM, and
    five seconds later SIGKILL. A worker that exits with 0 or 75 (EX_TEMPFAIL) has not failed, and
    the remaining workers continue.

    A signal that requests the end also resumes stopped processes. From then on the workers have
    `stop_s` seconds, and `stop_linger_s` seconds after the exit of rank 0. Then they get SIGTERM
    and SIGKILL.

    Args:
        sink: Receives the output lines of the workers.
        make_cutter: Creates a cutter, which splits a stream into lines.
        linger_s: Seconds that the other workers may run after rank 0 has exited successfully. Then
            they are terminated, which is not a failure. None: no limit.
        stop_linger_s: The same after a stop request, for any exit of rank 0.
        stop_s: Returns the number of seconds that the workers may run after a signal. None: no
            limit.
        notice_s: Seconds that the remaining workers may run after a failure.
        grace_s: Seconds between SIGTERM and SIGKILL.
        on_end: Called from a thread when a process has exited. `poll` returns its rank.
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
        self._find_stop_s = stop_s
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
        """Start the next rank, and return its process id.

        Raises:
            WorkerError: If the process cannot be started. The workers started before are killed.
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
        """Supervise a process as the next rank, and return its process id."""
        rank = len(self._processes)
        self._processes.append(process)
        for name, stream in (("stdout", process.stdout), ("stderr", process.stderr)):
            if stream is not None:
                self._pumps.append(
                    Pump(stream, rank, name, self._forward_line, self._make_cutter())
                )
        threading.Thread(
            target=self._wait_for_exit,
            args=(rank, process),
            name=f"detcore-wait-{rank}",
            daemon=True,
        ).start()
        return process.pid

    def _forward_line(self, rank: int, stream: str, line: Line) -> None:
        with self._sink_lock:
            self._sink(rank, stream, line)

    def _wait_for_exit(self, rank: int, process: WorkerProcess) -> None:
        process.wait()
        self._ended.put(rank)
        self._on_end()

    @property
    def pids(self) -> list[int]:
        """The process ids by rank, including exited processes."""
        return [process.pid for process in self._processes]

    @property
    def first_failed(self) -> int | None:
        """The rank that failed first; None if no rank has failed."""
        return self._first_failed

    def poll(self, timeout_s: float = 0.0) -> list[tuple[int, int]]:
        """Return the newly exited ranks with their codes, in order; terminate late workers.

        Args:
            timeout_s: Seconds to wait for an exit.
        """
        exits = []
        with contextlib.suppress(queue.Empty):
            rank = self._ended.get(timeout=timeout_s) if timeout_s else self._ended.get_nowait()
            while True:
                exits.append((rank, self._record_exit(rank)))
                rank = self._ended.get_nowait()
        now = time.monotonic()
        if self._kill_at is not None and now >= self._kill_at:
            self.kill()
        elif self._kill_at is None and self._end_at is not None and now >= self._end_at:
            self.end()
        return exits

    def _record_exit(self, rank: int) -> int:
        code = self._processes[rank].wait()
        self._codes[rank] = code
        # Surviving children of the worker would keep its output open.
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
        """Whether the failed exit of this rank is the reason why the job ends."""
        if self.is_ending and code in _ENDED_BY_US:
            # Without rank 0 the job was not successful, even if no worker has failed.
            return rank == 0 and self._first_failed is None
        if self._first_failed is None:
            return True
        # A rank that lost its peer may exit before the peer does.
        return self._codes[self._first_failed] == EXIT_PEER_LOST != code

    @property
    def is_alive(self) -> bool:
        """Whether a worker was running at the last `poll`."""
        return len(self._codes) < len(self._processes)

    @property
    def is_ending(self) -> bool:
        """Whether the remaining workers have received SIGTERM from `end`."""
        return self._kill_at is not None

    def end(self) -> None:
        """Send SIGTERM to all workers. Those that still run after the grace time are killed."""
        self._kill_at = self._kill_at or time.monotonic() + self._grace_s
        self.signal(signal.SIGTERM)

    def signal(self, number: int, *, with_children: bool = False) -> None:
        """Pass a signal on to every worker.

        Args:
            number: The signal.
            with_children: Whether to signal the workers' children as well, as a terminal does for
                Ctrl-C.
        """
        for rank, process in enumerate(self._processes):
            if rank in self._codes:
                continue
            if with_children:
                self._signal_group(rank, number)
            else:
                with contextlib.suppress(ProcessLookupError):
                    process.send_signal(number)
            # On another machine, the process group that passes the signal on sends SIGCONT.
            if number in ENDING_SIGNALS and not isinstance(process, RemoteProcess):
                self._signal_group(rank, signal.SIGCONT)
        if number in ENDING_SIGNALS:
            self._is_asked_to_end = True
            if self._find_stop_s is not None:
                self._end_within(self._find_stop_s(number))
            if 0 in self._codes:
                self._end_within(self._stop_linger_s)

    def kill(self) -> None:
        """Kill all workers and their children immediately."""
        for rank in range(len(self._processes)):
            if rank not in self._codes:
                self._signal_group(rank, signal.SIGKILL)

    def _signal_group(self, rank: int, number: int) -> None:
        process = self._processes[rank]
        if isinstance(process, RemoteProcess):
            # The other machine kills the children of a process when it exits.
            if rank not in self._codes:
                process.signal_group(number)
            return
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, number)

    def close(self) -> int:
        """Wait for all workers and their output, and return the exit code of the job.

        Returns:
            The code of the worker that failed first (negative: signal). If no worker failed, 75 if
            a worker exited with 75, and 0 otherwise.
        """
        while self.is_alive:
            self.poll(0.1)
        for pump in self._pumps:
            pump.join()
        if self._first_failed is not None:
            return self._codes[self._first_failed]
        return EXIT_TEMPFAIL if EXIT_TEMPFAIL in self._codes.values() else 0
