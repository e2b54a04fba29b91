"""Run any command as several workers, and print their lines."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from detcore.contract.errors import ConfigError
from detcore.environment import read_environment
from detcore.launch import process_guard
from detcore.launch.host_worker import reserve_port, torch_variables
from detcore.launch.hosts import HostsRequest, exported_environment, parse_hosts
from detcore.launch.job_variables import LocalJob, place_ranks
from detcore.launch.output_lines import RewriteLimit
from detcore.launch.worker_processes import Workers, describe_exit, find_stop_timeout_s
from detcore.stop_signals import find_stop_signals, handle_signals

if TYPE_CHECKING:
    from detcore.contract.launch import Line, RendezvousService
    from detcore.environment import Environment
    from detcore.launch.hosts import HostsJob, SupportsHosts


_POLL_INTERVAL_S = 0.1
_UPDATE_INTERVAL_S = 10.0
# After SIGINT. More than the hour that the end of a trial waits for its checkpoint by default; a
# person who does not want to wait interrupts twice.
_INTERRUPT_STOP_S = 3900.0
_EXIT_BROKEN_PIPE = 128 + signal.SIGPIPE
_LOOPBACK = "127.0.0.1"


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
    workers = Workers(printer, stop_s=partial(_stop_s, environment))
    with ExitStack() as stack:
        job = LocalJob(num_workers, services=services)
        stack.callback(job.close)
        port = reserve_port(stack, _LOOPBACK) if torch else None
        guard = stack.enter_context(_guarded())
        signals = _Signals()
        stack.enter_context(signals.listen())
        stack.callback(workers.kill)  # those that an error here leaves behind
        for rank, place in enumerate(place_ranks(["here"] * num_workers)):
            mine = dict(variables) if rank == 0 else {**variables, **without_channel}
            if port is not None:
                mine = {**torch_variables(place, _LOOPBACK, port), **mine}
            keep_open = trials_own if rank == 0 else ()
            started = job.environment(rank, mine)
            guard(f"={started['DETCORE_JOB_KEY']}")
            guard(f"+{workers.start(command, started, keep_open=keep_open)}")
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
        environment=exported_environment(variables, exported),
        stop_s=partial(_stop_s, read_environment()),
    )
    with ExitStack() as stack:
        guard = stack.enter_context(_guarded())
        signals = _Signals()
        stack.enter_context(signals.listen())
        run = service.start_on_hosts(command, request, printer)
        stack.callback(run.kill)
        guard(f"+{run.pid}")
        code = _follow(run, printer, signals, notice, lambda rank: None)
        guard(f"-{run.pid}")
        if run.failure is not None:
            notice(run.failure)
    return code


def _stop_s(environment: Environment, number: int) -> float:
    """Return how long workers may take to end after a signal, in seconds."""
    return find_stop_timeout_s(
        number, grace_s=environment.grace_s, interrupt_timeout_s=_INTERRUPT_STOP_S
    )


def _follow(
    workers: Workers | HostsJob,
    printer: Printer,
    signals: _Signals,
    notice: Callable[[str], None],
    ended: Callable[[int], None],
) -> int:
    """Supervise workers until they end; return the exit code for the shell."""
    while workers.is_alive:
        for rank, code in workers.poll(_POLL_INTERVAL_S):
            ended(rank)
            if workers.first_failed == rank:
                others = "; ending the others" if workers.is_alive else ""
                notice(f"rank {rank} {describe_exit(code)}{others}")
        signals.pass_on(workers)
        if printer.is_broken and workers.is_alive and not workers.is_ending:
            workers.end()
    code = workers.close()
    return _EXIT_BROKEN_PIPE if printer.is_broken else shell_code(code)


def shell_code(code: int) -> int:
    """Return a process's code as shells have it: 128 + n for signal n."""
    return code if code >= 0 else 128 - code


class Printer:
    """Writes each line whole, with its rank in front; of a progress bar, some of its states.

    Args:
        stdout: Where lines from ``"stdout"`` go.
        stderr: Where lines from ``"stderr"`` go.

    Attributes:
        is_broken: Whether the reader has ended, such as `| head`. Workers must not block then.
    """

    def __init__(self, stdout: BinaryIO, stderr: BinaryIO) -> None:
        self._streams = {"stdout": stdout, "stderr": stderr}
        self._limit = RewriteLimit(_UPDATE_INTERVAL_S)
        self.is_broken = False

    def __call__(self, rank: int, stream: str, line: Line) -> None:
        """Write a line; see `detcore.contract.launch.Sink`."""
        if self.is_broken or not self._limit.lets_through(rank, stream, line):
            return
        try:
            self._streams[stream].write(b"[rank=%d] %s\n" % (rank, line.text))
            self._streams[stream].flush()
        except BrokenPipeError:
            self.is_broken = True


class _Signals:
    """Collects the signals that this process gets, to pass them on."""

    def __init__(self) -> None:
        self._received: deque[int] = deque()
        self._num_interrupts = 0

    def listen(self) -> AbstractContextManager[None]:
        """Return a context during which signals are collected."""
        # At SIGQUIT, workers with a Core API context write their stacks and continue.
        return handle_signals((*find_stop_signals(), signal.SIGQUIT), self._received.append)

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
        [sys.executable, "-I", "-S", str(Path(process_guard.__file__))],
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
            tell("=")
