"""Run any command as several workers, and print their output with ranks."""

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
from detcore.launch.hosts import HostsRequest, parse_hosts, select_exported_variables
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
# Time after SIGINT: longer than the hour for which a trial waits for its last checkpoint by
# default. A person who does not want to wait interrupts twice.
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
    """Run a command in several processes of this machine until all have exited.

    SIGINT, SIGTERM, SIGUSR1, SIGQUIT and SIGHUP are passed on. A second SIGINT kills all workers
    immediately. Workers that do not exit in time are killed; see `Workers`. When a worker fails,
    the remaining workers are terminated. If this process is killed, so are the workers.

    Args:
        command: Program and arguments.
        num_workers: Number of processes; >= 1.
        services: Rendezvous services that run as long as the workers, by name; see
            `detcore.launch.nodes`.
        torch: Whether to set the variables for ``torch.distributed.init_process_group()``.
        variables: More variables for all workers.
        notice: Called with one-line messages about the job.

    Returns:
        The exit code of the worker that failed first (128 + n: killed by signal n). If no worker
        failed, 75 if a worker exited with 75, and 0 otherwise.

    Raises:
        WorkerError: If a process cannot be started.
    """
    environment = read_environment()  # has a channel if a trial's command is `detcore launch ...`
    inherited_fds = () if environment.channel_fd is None else (environment.channel_fd,)
    without_channel = {"DETCORE_CHANNEL_FD": ""}
    printer = Printer(sys.stdout.buffer, sys.stderr.buffer)
    workers = Workers(printer, stop_s=partial(_find_stop_timeout_s, environment))
    with ExitStack() as stack:
        job = LocalJob(num_workers, services=services)
        stack.callback(job.close)
        port = reserve_port(stack, _LOOPBACK) if torch else None
        guard = stack.enter_context(_start_guard())
        signals = _Signals()
        stack.enter_context(signals.listen())
        stack.callback(workers.kill)  # after an error in this block
        for rank, place in enumerate(place_ranks(["here"] * num_workers)):
            rank_variables = dict(variables) if rank == 0 else {**variables, **without_channel}
            if port is not None:
                rank_variables = {**torch_variables(place, _LOOPBACK, port), **rank_variables}
            keep_open = inherited_fds if rank == 0 else ()
            worker_environment = job.make_environment(rank, rank_variables)
            guard(f"={worker_environment['DETCORE_JOB_KEY']}")
            guard(f"+{workers.start(command, worker_environment, keep_open=keep_open)}")
        return _supervise(
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
        hosts: The machines and their slots, as ``"a:4,b:4"``. Rank 0 runs on the first machine.
        num_workers: Total number of processes; None: one for each slot.
        network_interface: Name of the network interface on all machines; None: the interface that
            reaches the hosts.
        variables: Variables for all workers.
        exported: Names of further variables of this process that the workers get.
        notice: Called with one-line messages about the job.

    Returns:
        The exit code, as in `run_workers`.

    Raises:
        ConfigError: If the hosts cannot be parsed or have too few slots, if a variable may not be
            passed on, or if the service lacks a program.
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
        environment=select_exported_variables(variables, exported),
        stop_s=partial(_find_stop_timeout_s, read_environment()),
    )
    with ExitStack() as stack:
        guard = stack.enter_context(_start_guard())
        signals = _Signals()
        stack.enter_context(signals.listen())
        run = service.start_on_hosts(command, request, printer)
        stack.callback(run.kill)
        guard(f"+{run.pid}")
        code = _supervise(run, printer, signals, notice, lambda rank: None)
        guard(f"-{run.pid}")
        if run.failure is not None:
            notice(run.failure)
    return code


def _find_stop_timeout_s(environment: Environment, number: int) -> float:
    """Return the number of seconds that workers may run after a signal."""
    return find_stop_timeout_s(
        number, grace_s=environment.grace_s, interrupt_timeout_s=_INTERRUPT_STOP_S
    )


def _supervise(
    workers: Workers | HostsJob,
    printer: Printer,
    signals: _Signals,
    notice: Callable[[str], None],
    on_end: Callable[[int], None],
) -> int:
    """Supervise workers until they exit, and return the exit code for the shell."""
    while workers.is_alive:
        for rank, code in workers.poll(_POLL_INTERVAL_S):
            on_end(rank)
            if workers.first_failed == rank:
                consequence = "; ending the others" if workers.is_alive else ""
                notice(f"rank {rank} {describe_exit(code)}{consequence}")
        signals.pass_on(workers)
        if printer.is_broken and workers.is_alive and not workers.is_ending:
            workers.end()
    code = workers.close()
    return _EXIT_BROKEN_PIPE if printer.is_broken else get_shell_code(code)


def get_shell_code(code: int) -> int:
    """Return the exit code as shells report it: 128 + n for signal n."""
    return code if code >= 0 else 128 - code


class Printer:
    """Writes complete lines with the rank in front, and some states of each progress bar.

    Args:
        stdout: Stream for lines from ``"stdout"``.
        stderr: Stream for lines from ``"stderr"``.

    Attributes:
        is_broken: Whether the reader, such as `| head`, has exited. Workers must not block then.
    """

    def __init__(self, stdout: BinaryIO, stderr: BinaryIO) -> None:
        self._streams = {"stdout": stdout, "stderr": stderr}
        self._limit = RewriteLimit(_UPDATE_INTERVAL_S)
        self.is_broken = False

    def __call__(self, rank: int, stream: str, line: Line) -> None:
        """Write a line; see `detcore.contract.launch.Sink`."""
        if self.is_broken or not self._limit.should_show(rank, stream, line):
            return
        try:
            self._streams[stream].write(b"[rank=%d] %s\n" % (rank, line.text))
            self._streams[stream].flush()
        except BrokenPipeError:
            self.is_broken = True


class _Signals:
    """Collects the signals that this process receives, and passes them on."""

    def __init__(self) -> None:
        self._received: deque[int] = deque()
        self._num_interrupts = 0

    def listen(self) -> AbstractContextManager[None]:
        """Return a context during which signals are collected."""
        # At SIGQUIT, workers with a Core API context write their stacks and continue.
        return handle_signals((*find_stop_signals(), signal.SIGQUIT), self._received.append)

    def pass_on(self, workers: Workers | HostsJob) -> None:
        """Pass on the signals received so far. A second SIGINT kills all workers immediately."""
        while self._received:
            number = self._received.popleft()
            self._num_interrupts += number == signal.SIGINT
            if number == signal.SIGINT and self._num_interrupts > 1:
                workers.kill()
            else:
                workers.signal(number, with_children=number == signal.SIGINT)


@contextmanager
def _start_guard() -> Iterator[Callable[[str], None]]:
    """Start the guard process, which outlives this process; yield a function for its commands."""
    guard = subprocess.Popen(
        [sys.executable, "-I", "-S", str(Path(process_guard.__file__))],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        text=True,
        bufsize=1,
        start_new_session=True,
    )

    def send_command(command: str) -> None:
        if guard.stdin is not None:
            with suppress(BrokenPipeError):  # the job continues if the guard was killed
                guard.stdin.write(command + "\n")

    try:
        yield send_command
    finally:
        with guard, suppress(BrokenPipeError):
            send_command("=")
