"""Run any command as several workers, and print their lines."""

from __future__ import annotations

import contextlib
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from detcore.contract.errors import ConfigError
from detcore.contract.launch import HostsJob, HostsRequest, Line, SupportsHosts
from detcore.environment import read_environment
from detcore.launch import _guard
from detcore.launch._hosts import exported_environment, parse_hosts
from detcore.launch._job import LocalJob
from detcore.launch._places import outer_variables
from detcore.launch._workers import Workers

if TYPE_CHECKING:
    from detcore.contract.launch import RendezvousService
    from detcore.environment import Environment

__all__ = ["Printer", "describe_exit", "run_on_hosts", "run_workers", "shell_code"]

_POLL_S = 0.1
# More than the hour that the end of a trial waits for its checkpoint by default.
_STOP_S = 3900.0
_EXIT_BROKEN_PIPE = 128 + signal.SIGPIPE
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_CLEAR = b"\r\x1b[K"
_LOG_INTERVAL_S = 10.0


def run_workers(
    command: Sequence[str],
    *,
    num_workers: int,
    services: Mapping[str, RendezvousService],
    torch: bool,
    variables: Mapping[str, str],
    notice: Callable[[str], None],
) -> int:
    """Run a command in several processes of this machine until all have ended.

    SIGINT, SIGTERM, SIGUSR1, SIGQUIT and SIGHUP are passed on; a second SIGINT ends all at once.
    Workers that do not end get SIGKILL in the end; see `Workers`. When one fails the rest are
    ended. If this process is killed, so are they.

    Args:
        command: Program and arguments.
        num_workers: How many processes; >= 1.
        services: Run as long as they do, by name; see `detcore.launch.nodes`.
        torch: Whether ``torch.distributed.init_process_group()`` is to work in them.
        variables: More variables for all of them.
        notice: Called with one-line messages about the job.

    Returns:
        The exit code of the first that failed (128 + n: killed by signal n), else 75 if one
        wants to come back later, else 0.

    Raises:
        WorkerError: If a process cannot be started.
    """
    environment = read_environment()  # of a trial whose command is `detcore launch ...`
    trials_own = () if environment.channel_fd is None else (environment.channel_fd,)
    without_channel = {"DETCORE_CHANNEL_FD": ""}
    printer = Printer(sys.stdout.buffer, sys.stderr.buffer)
    workers = Workers(printer, stop_s=_stop_s(environment))
    with ExitStack() as stack:
        job = LocalJob(num_workers, services=services, torch=torch)
        stack.callback(job.close)
        guard = stack.enter_context(_guarded())
        signals = stack.enter_context(_Signals())
        stack.callback(workers.kill)  # those that an error here leaves behind
        for rank in range(num_workers):
            mine = dict(variables) if rank == 0 else {**variables, **without_channel}
            keep_open = trials_own if rank == 0 else ()
            guard(f"+{workers.start(command, job.environment(rank, mine), keep_open=keep_open)}")
        return _follow(
            workers, printer, signals, notice, lambda rank: guard(f"-{workers.pids[rank]}")
        )


def run_on_hosts(
    command: Sequence[str],
    *,
    service: SupportsHosts,
    hosts: str,
    num_workers: int | None,
    network_interface: str | None,
    variables: Mapping[str, str],
    exported: Sequence[str],
    notice: Callable[[str], None],
) -> int:
    """Run a command on several machines; see `run_workers`.

    Args:
        command: Program and arguments; the same paths on all machines.
        service: Starts the workers.
        hosts: The machines and their slots, as ``"a:4,b:4"``; rank 0 runs on the first one.
        num_workers: How many processes in all; None: one for each slot.
        network_interface: Its name on all machines; None: the one that leads to the hosts.
        variables: Variables for all workers.
        exported: Names of this process's variables that the workers find too.
        notice: Called with one-line messages about the job.

    Returns:
        As `run_workers` does.

    Raises:
        ConfigError: If the hosts cannot be read or have too few slots, a variable may not be passed
            on, or the service lacks a program.
        WorkerError: If a host has no address, or the command does not start.
    """
    machines = parse_hosts(hosts)
    slots = sum(host.slots for host in machines)
    if num_workers is not None and num_workers > slots:
        raise ConfigError(f"-n {num_workers}, but the hosts have {slots} slots: {hosts}")
    printer = Printer(sys.stdout.buffer, sys.stderr.buffer)
    request = HostsRequest(
        hosts=machines,
        num_workers=num_workers or slots,
        network_interface=network_interface,
        environment=exported_environment(
            {"PYTHONUNBUFFERED": "1", **variables}, exported, outer_variables()
        ),
        stop_s=_stop_s(read_environment()),
    )
    with ExitStack() as stack:
        guard = stack.enter_context(_guarded())
        signals = stack.enter_context(_Signals())
        run = service.start_on_hosts(command, request, printer)
        stack.callback(run.kill)
        guard(f"+{run.pid}")
        code = _follow(run, printer, signals, notice, lambda rank: None)
        guard(f"-{run.pid}")
        if run.failure is not None:
            notice(run.failure)
    return code


def _stop_s(environment: Environment) -> float:
    """Return how long workers may take to end once they were asked to, in seconds."""
    return _STOP_S if environment.grace_s is None else environment.grace_s


def _follow(
    workers: Workers | HostsJob,
    printer: Printer,
    signals: _Signals,
    notice: Callable[[str], None],
    ended: Callable[[int], None],
) -> int:
    """Supervise workers until they end; return the exit code for the shell."""
    try:
        while workers.is_alive:
            for rank, code in workers.poll(_POLL_S):
                ended(rank)
                if workers.first_failed == rank:
                    others = "; ending the others" if workers.is_alive else ""
                    notice(f"rank {rank} {describe_exit(code)}{others}")
            signals.pass_on(workers)
            if printer.is_broken and workers.is_alive and not workers.is_ending:
                workers.end()
        code = workers.close()
    finally:
        printer.close()
    return _EXIT_BROKEN_PIPE if printer.is_broken else shell_code(code)


def shell_code(code: int) -> int:
    """Return a process's code as shells have it: 128 + n for signal n."""
    return code if code >= 0 else 128 - code


def describe_exit(code: int) -> str:
    """Say how a process ended: ``"ended with exit code 3"``, ``"was killed by SIGKILL"``."""
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"


class _Signals:
    """Collects the signals that this process gets, to pass them on."""

    def __init__(self) -> None:
        self._received: deque[int] = deque()
        self._num_interrupts = 0
        self._before: dict[int, Any] = {}

    def __enter__(self) -> _Signals:
        # At SIGQUIT, workers with a Core API context write their stacks and continue.
        numbers = [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGQUIT]
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # nohup
            numbers.append(signal.SIGHUP)
        for number in numbers:
            self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *exc_info: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, _frame: object) -> None:
        self._received.append(number)

    def pass_on(self, workers: Workers | HostsJob) -> None:
        """Pass on the signals received since; a second SIGINT kills all workers at once."""
        while self._received:
            number = self._received.popleft()
            self._num_interrupts += number == signal.SIGINT
            if number == signal.SIGINT and self._num_interrupts > 1:
                workers.kill()
            else:
                workers.signal(number, with_children=number == signal.SIGINT)


@contextmanager
def _guarded() -> Iterator[Callable[[str], None]]:
    """Start the guard process, which outlives this one; yield a function that sends it commands."""
    guard = subprocess.Popen(
        [sys.executable, "-I", "-S", str(Path(_guard.__file__))],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        text=True,
        bufsize=1,
        start_new_session=True,
    )

    def tell(command: str) -> None:
        if guard.stdin is not None:
            with suppress(BrokenPipeError):  # it was killed: the job continues without it
                guard.stdin.write(command + "\n")

    try:
        yield tell
    finally:
        with guard, suppress(BrokenPipeError):
            pass


class Printer:
    """Writes each line whole, with its rank in front.

    For a line that a rank keeps rewriting (a progress bar), a log gets the last state and some
    earlier ones; a terminal shows the states of the lowest such rank below all other lines.

    Args:
        stdout: Where lines from ``"stdout"`` go.
        stderr: Where lines from ``"stderr"`` go.
        log_interval_s: How often a log gets a state of a progress bar, in seconds.
    """

    def __init__(
        self, stdout: BinaryIO, stderr: BinaryIO, *, log_interval_s: float = _LOG_INTERVAL_S
    ) -> None:
        self._log_interval_s = log_interval_s
        self._streams = {"stdout": stdout, "stderr": stderr}
        self._terminals = {name for name, to in self._streams.items() if to.isatty()}
        self._bars: dict[tuple[int, str], bytes] = {}
        self._logged_at: dict[tuple[int, str], float] = {}
        self._status = b""
        self.is_broken = False

    def __call__(self, rank: int, stream: str, line: Line) -> None:
        """Write a line; see `detcore.launch._workers.Sink`."""
        place = (rank, stream)
        text = b"[rank=%d] %s" % (rank, line.text)
        if line.is_final:
            self._bars.pop(place, None)
            self._logged_at.pop(place, None)
            self._write(stream, text + b"\n")
        elif stream in self._terminals:
            self._bars[place] = text
            self._write(stream, b"")
        elif self._is_due(place):
            self._write(stream, text + b"\n")

    def _is_due(self, place: tuple[int, str]) -> bool:
        now = time.monotonic()
        if now - self._logged_at.setdefault(place, now) < self._log_interval_s:
            return False
        self._logged_at[place] = now
        return True

    def _write(self, stream: str, text: bytes) -> None:
        if stream in self._terminals:
            clear = _CLEAR if self._status else b""
            bar = self._bars[min(self._bars)] if self._bars else b""
            self._status = _fit(bar)
            text = clear + text + self._status
        if self.is_broken or not text:
            return
        try:
            self._streams[stream].write(text)
            self._streams[stream].flush()
        except BrokenPipeError:
            # The reader has ended, such as `| head`. Workers must not block on full pipes.
            self.is_broken = True

    def close(self) -> None:
        """Take the status line away."""
        if self._status and not self.is_broken:
            self._bars.clear()
            with contextlib.suppress(BrokenPipeError):
                self._write(min(self._terminals), b"")


def _fit(bar: bytes) -> bytes:
    """Return the part that fits on one terminal line, without colours, which cannot be cut."""
    columns = shutil.get_terminal_size().columns
    return _COLOUR.sub("", bar.decode("utf-8", "replace"))[: columns - 1].encode()
