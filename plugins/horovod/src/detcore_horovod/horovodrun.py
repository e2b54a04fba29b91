"""Run a command on several machines with ``horovodrun``."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
import queue
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from detcore.errors import ConfigError, WorkerError
from detcore.launch.nodes import HostsRequest, Line, LineCutter, Sink, Workers, find_interface
from detcore_horovod.worker_agent import MARK

# The same times as for the workers of one machine; see `detcore.launch.nodes.Workers`.
_NOTICE_S = 2.0
_GRACE_S = 5.0
_ENDING_SIGNALS = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)
_EXIT_TEMPFAIL = os.EX_TEMPFAIL
_DISCARD_PORT = 9

_PREFIX = re.compile(rb"\[(\d+)\]<(stdout|stderr)>:")
_EXIT_MESSAGE = re.compile(r"Process (\d+) exit with status code (\d+)")
_SSH = ("ssh", "-o", "BatchMode=yes", "-o", "StrictHostKeyChecking=no", "-o", "ConnectTimeout=10")
_MAX_MESSAGES = 200


def start_on_hosts(command: Sequence[str], request: HostsRequest, sink: Sink) -> HorovodRun:
    """Start a command on several machines; see `detcore.launch.nodes.SupportsHosts`."""
    program = Path(sys.executable).parent / "horovodrun"
    if not program.is_file():
        raise ConfigError(
            f"--hosts needs horovodrun, but {program} does not exist.\n"
            "Install Horovod in this environment: HOROVOD_WITH_GLOO=1 pip install horovod"
        )
    names = [host.name for host in request.hosts]
    line = [
        *(str(program), "--gloo", "-np", str(request.num_workers)),
        *("-H", ",".join(f"{host.name}:{host.slots}" for host in request.hosts)),
        # Without this option, horovodrun searches for the interface and puts a secret on command
        # lines.
        *("--network-interfaces", request.network_interface or interface_towards(names)),
        *(sys.executable, "-m", "detcore_horovod.worker_agent", *command),
    ]
    environment = {**request.environment, "DET_CHIEF_IP": chief_address(names)}
    return HorovodRun(line, environment, sink, stop_s=request.stop_s)


@dataclasses.dataclass(frozen=True, slots=True)
class _Worker:
    way: str
    host: str
    pid: int


class HorovodRun:
    """A running ``horovodrun`` and its workers, with the interface of `Workers`.

    Signals go to the workers directly or over ssh, because horovodrun does not forward signals.

    Args:
        command: The command line of horovodrun.
        environment: All environment variables of horovodrun, which puts them on command lines.
        sink: Receives the lines that the workers print.
        stop_s: Returns the time that workers have to end after a signal, in seconds.

    Attributes:
        pid: Process id of horovodrun.
        first_failed: The rank that failed first, or None.
        failure: After `close`, horovodrun's output if it started no worker, otherwise None.
    """

    def __init__(
        self,
        command: Sequence[str],
        environment: dict[str, str],
        sink: Sink,
        *,
        stop_s: Callable[[int], float],
    ) -> None:
        self._sink = sink
        self._cutters: dict[tuple[int, str], LineCutter] = {}
        self._reports: queue.SimpleQueue[tuple[int, list[str]]] = queue.SimpleQueue()
        self._running: dict[int, _Worker] = {}
        self._codes: dict[int, int] = {}
        self._ended_workers: list[tuple[int, int]] = []  # since the last poll
        self.first_failed: int | None = None
        self._end_at: float | None = None
        self._stop_s = stop_s
        self._end_signal: int | None = None  # the first signal that requested the end
        self._kill_at: float | None = None
        self._ssh_calls: list[subprocess.Popen[bytes]] = []
        self._messages: list[str] = []
        self.failure: str | None = None
        self._run = Workers(self._receive_line, make_cutter=_Pieces)
        self.pid = self._run.start(command, environment)

    def _receive_line(self, rank: int, stream: str, line: Line) -> None:
        match = _PREFIX.match(line.text)
        if match is None:
            if len(self._messages) < _MAX_MESSAGES:
                self._messages.append(line.text.decode("utf-8", "replace").rstrip())
            return
        rank, stream = int(match[1]), match[2].decode()
        text, marker, report = line.text[match.end() :].partition(MARK)
        cutter = self._cutters.setdefault((rank, stream), LineCutter())
        lines = [*cutter.feed(text), *(cutter.finish() if marker else ())]
        for complete_line in lines:
            self._sink(rank, stream, complete_line)
        if marker:
            self._reports.put((rank, report.decode().split()))

    @property
    def is_alive(self) -> bool:
        """Whether horovodrun was running at the last `poll`."""
        return self._run.is_alive

    @property
    def is_ending(self) -> bool:
        """Whether the remaining workers were requested to end."""
        return self._kill_at is not None

    def poll(self, timeout_s: float) -> list[tuple[int, int]]:
        """Return the ranks that ended since the last call, with their codes; see `Workers.poll`."""
        self._run.poll(timeout_s)
        self._process_reports()
        ended_workers, self._ended_workers = self._ended_workers, []
        now = time.monotonic()
        if self._kill_at is not None and now >= self._kill_at and not self._run.is_ending:
            self.kill()
        elif self._kill_at is None and self._end_at is not None and now >= self._end_at:
            self.end()
        self._ssh_calls = [call for call in self._ssh_calls if call.poll() is None]
        return ended_workers

    def _process_reports(self) -> None:
        """Process the agents' reports about their workers."""
        with contextlib.suppress(queue.Empty):
            while True:
                rank, (event, *values) = self._reports.get_nowait()
                if event == "started":
                    worker = self._running[rank] = _Worker(values[0], values[1], int(values[2]))
                    if self._end_signal is not None:
                        self._send_signal(self._end_signal, [worker])
                        self._send_signal(signal.SIGCONT, [worker], with_children=True)
                    continue
                self._running.pop(rank, None)
                code = self._codes[rank] = int(values[0])
                self._ended_workers.append((rank, code))
                if code not in (0, _EXIT_TEMPFAIL) and self.first_failed is None:
                    self.first_failed = rank
                    self._end_at = min(self._end_at or math.inf, time.monotonic() + _NOTICE_S)

    def end(self) -> None:
        """Request all workers to end, and kill the remaining workers after the grace time."""
        self._kill_at = self._kill_at or time.monotonic() + _GRACE_S
        self.signal(signal.SIGTERM)

    def kill(self) -> None:
        """Kill all workers and horovodrun."""
        self._kill_at = self._kill_at or time.monotonic()
        self.signal(signal.SIGKILL, with_children=True)
        self._run.end()

    def signal(self, number: int, *, with_children: bool = False) -> None:
        """Send a signal to every worker; see `Workers.signal`."""
        self._process_reports()
        workers = list(self._running.values())
        self._send_signal(number, workers, with_children=with_children)
        if number in _ENDING_SIGNALS:
            self._send_signal(signal.SIGCONT, workers, with_children=True)
            if self._end_signal is None:
                self._end_signal = number
                self._end_at = min(
                    self._end_at or math.inf, time.monotonic() + self._stop_s(number)
                )
        if not self._running and number != signal.SIGUSR1:
            self._run.signal(signal.SIGTERM)  # horovodrun is still connecting

    def _send_signal(
        self, number: int, workers: list[_Worker], *, with_children: bool = False
    ) -> None:
        over_ssh: dict[str, list[str]] = {}
        for worker in workers:
            target = -worker.pid if with_children else worker.pid
            if worker.way == "ssh":
                over_ssh.setdefault(worker.host, []).append(str(target))
            else:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(target, number)
        for host, targets in over_ssh.items():
            name = signal.Signals(number).name.removeprefix("SIG")
            self._ssh_calls.append(
                subprocess.Popen(
                    [*_SSH, host, f"kill -s {name} -- {' '.join(targets)}"],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                )
            )

    def close(self) -> int:
        """Wait for the end, and return the exit code as `Workers.close` does."""
        run_code = self._run.close()
        self.poll(0.0)
        # Workers whose agent was killed are still running.
        self._send_signal(signal.SIGKILL, list(self._running.values()), with_children=True)
        for call in self._ssh_calls:
            call.wait(_GRACE_S)
        for (rank, stream), cutter in self._cutters.items():
            for line in cutter.finish():
                self._sink(rank, stream, line)
        if self.first_failed is not None:
            return self._codes[self.first_failed]
        # Only horovodrun reports killed agents and broken connections.
        for match in filter(None, map(_EXIT_MESSAGE.match, self._messages)):
            self.first_failed = int(match[1])
            return int(match[2])
        if run_code not in (0, _EXIT_TEMPFAIL):
            self.failure = "\n".join(["horovodrun did not start the workers:", *self._messages])
        return run_code or (_EXIT_TEMPFAIL if _EXIT_TEMPFAIL in self._codes.values() else 0)


class _Pieces:
    """Cuts horovodrun's output after each return and line end, before the next rank prefix."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> Iterator[Line]:
        """Yield the pieces that `data` completes, including their line ends."""
        *pieces, self._rest = re.split(rb"(?<=[\r\n])", self._rest + data)
        yield from map(Line, pieces)

    def finish(self) -> Iterator[Line]:
        """Yield the remaining output, which has no line end."""
        piece, self._rest = self._rest, b""
        if piece:
            yield Line(piece)


def interface_towards(hosts: Sequence[str]) -> str:
    """Return the name of this machine's network interface that reaches the hosts.

    Raises:
        WorkerError: If a host name has no address, or no interface reaches the hosts.
    """
    sources = [_source_address(_resolve_address(host)) for host in hosts]
    source = next((address for address in sources if not address.startswith("127.")), sources[0])
    name = find_interface(source)
    if name is not None:
        return name
    raise WorkerError(
        f"no network interface of this machine has the address {source}, from which it reaches "
        f"{hosts[-1]}.\nPass the interface that reaches the other machines: --network-interface"
    )


def chief_address(hosts: Sequence[str]) -> str:
    """Return the address at which other hosts reach the first host, where rank 0 runs.

    Raises:
        WorkerError: If a host name has no address.
    """
    addresses = [_resolve_address(host) for host in hosts]
    if addresses[0].startswith("127."):
        for address in addresses[1:]:
            source = _source_address(address)
            if not source.startswith("127."):
                return source
    return addresses[0]


def _resolve_address(name: str) -> str:
    try:
        return socket.gethostbyname(name)
    except OSError as error:
        raise WorkerError(f"the host {name!r} has no address: {error}") from error


def _source_address(address: str) -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((address, _DISCARD_PORT))  # sends nothing
        except OSError as error:
            raise WorkerError(f"this machine has no route to {address}: {error}") from error
        return str(probe.getsockname()[0])
