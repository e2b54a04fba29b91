"""Running a command on several machines, through ``horovodrun``."""

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

# As for the workers of one machine; see `detcore.launch.nodes.Workers`.
_NOTICE_S = 2.0
_GRACE_S = 5.0
_ENDING_SIGNALS = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)
_EXIT_TEMPFAIL = os.EX_TEMPFAIL
_DISCARD_PORT = 9

_PREFIX = re.compile(rb"\[(\d+)\]<(stdout|stderr)>:")
_ENDED = re.compile(r"Process (\d+) exit with status code (\d+)")
_SSH = ("ssh", "-o", "BatchMode=yes", "-o", "StrictHostKeyChecking=no", "-o", "ConnectTimeout=10")
_KEPT_MESSAGES = 200


def start_on_hosts(command: Sequence[str], request: HostsRequest, sink: Sink) -> HorovodRun:
    """Start a command on several machines; see `detcore.launch.nodes.SupportsHosts`."""
    program = Path(sys.executable).parent / "horovodrun"
    if not program.is_file():
        raise ConfigError(
            f"--hosts needs horovodrun, but there is no {program}.\n"
            "Install Horovod in this environment: HOROVOD_WITH_GLOO=1 pip install horovod"
        )
    names = [host.name for host in request.hosts]
    line = [
        *(str(program), "--gloo", "-np", str(request.num_workers)),
        *("-H", ",".join(f"{host.name}:{host.slots}" for host in request.hosts)),
        # Named, so that horovodrun does not look for it: it would put a secret on command lines.
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
    """A running ``horovodrun`` and the workers it started; the rules are those of `Workers`.

    Signals go to the workers directly, or over ssh: horovodrun passes none on.

    Args:
        command: The command line of horovodrun.
        environment: All its variables; it puts them on command lines.
        sink: Takes the lines that the workers print.
        stop_s: Returns how long all may take to end after a signal, in seconds.

    Attributes:
        pid: Process id of horovodrun.
        first_failed: The rank that failed first, None while none has.
        failure: Once it is closed, its output if it started no worker, else None.
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
        self._news: queue.SimpleQueue[tuple[int, list[str]]] = queue.SimpleQueue()
        self._running: dict[int, _Worker] = {}
        self._codes: dict[int, int] = {}
        self._ended: list[tuple[int, int]] = []  # since the last poll
        self.first_failed: int | None = None
        self._end_at: float | None = None
        self._stop_s = stop_s
        self._asked_with: int | None = None  # the first signal that asked all to end
        self._kill_at: float | None = None
        self._calls: list[subprocess.Popen[bytes]] = []
        self._messages: list[str] = []
        self.failure: str | None = None
        self._run = Workers(self._take, make_cutter=_Pieces)
        self.pid = self._run.start(command, environment)

    def _take(self, rank: int, stream: str, line: Line) -> None:
        match = _PREFIX.match(line.text)
        if match is None:
            if len(self._messages) < _KEPT_MESSAGES:
                self._messages.append(line.text.decode("utf-8", "replace").rstrip())
            return
        rank, stream = int(match[1]), match[2].decode()
        text, mark, told = line.text[match.end() :].partition(MARK)
        cutter = self._cutters.setdefault((rank, stream), LineCutter())
        lines = [*cutter.feed(text), *(cutter.finish() if mark else ())]
        for whole in lines:
            self._sink(rank, stream, whole)
        if mark:
            self._news.put((rank, told.decode().split()))

    @property
    def is_alive(self) -> bool:
        """Whether horovodrun has not ended, as of the last `poll`."""
        return self._run.is_alive

    @property
    def is_ending(self) -> bool:
        """Whether those that are left were asked to end."""
        return self._kill_at is not None

    def poll(self, timeout_s: float) -> list[tuple[int, int]]:
        """Return the ranks that ended since, with their codes; see `Workers.poll`."""
        self._run.poll(timeout_s)
        self._hear()
        ended, self._ended = self._ended, []
        now = time.monotonic()
        if self._kill_at is not None and now >= self._kill_at and not self._run.is_ending:
            self.kill()
        elif self._kill_at is None and self._end_at is not None and now >= self._end_at:
            self.end()
        self._calls = [call for call in self._calls if call.poll() is None]
        return ended

    def _hear(self) -> None:
        """Take in the reports of the agents about their workers."""
        with contextlib.suppress(queue.Empty):
            while True:
                rank, (what, *words) = self._news.get_nowait()
                if what == "started":
                    worker = self._running[rank] = _Worker(words[0], words[1], int(words[2]))
                    if self._asked_with is not None:
                        self._send(self._asked_with, [worker])
                        self._send(signal.SIGCONT, [worker], with_children=True)
                    continue
                self._running.pop(rank, None)
                code = self._codes[rank] = int(words[0])
                self._ended.append((rank, code))
                if code not in (0, _EXIT_TEMPFAIL) and self.first_failed is None:
                    self.first_failed = rank
                    self._end_at = min(self._end_at or math.inf, time.monotonic() + _NOTICE_S)

    def end(self) -> None:
        """Ask all to end; kill those that are still there after the grace time."""
        self._kill_at = self._kill_at or time.monotonic() + _GRACE_S
        self.signal(signal.SIGTERM)

    def kill(self) -> None:
        """End all workers, and horovodrun."""
        self._kill_at = self._kill_at or time.monotonic()
        self.signal(signal.SIGKILL, with_children=True)
        self._run.end()

    def signal(self, number: int, *, with_children: bool = False) -> None:
        """Pass a signal on to every worker; see `Workers.signal`."""
        self._hear()
        workers = list(self._running.values())
        self._send(number, workers, with_children=with_children)
        if number in _ENDING_SIGNALS:
            self._send(signal.SIGCONT, workers, with_children=True)
            if self._asked_with is None:
                self._asked_with = number
                self._end_at = min(
                    self._end_at or math.inf, time.monotonic() + self._stop_s(number)
                )
        if not self._running and number != signal.SIGUSR1:
            self._run.signal(signal.SIGTERM)  # it is still connecting

    def _send(self, number: int, workers: list[_Worker], *, with_children: bool = False) -> None:
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
            self._calls.append(
                subprocess.Popen(
                    [*_SSH, host, f"kill -s {name} -- {' '.join(targets)}"],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                )
            )

    def close(self) -> int:
        """Wait for the end; return the code as `Workers.close` does."""
        run_code = self._run.close()
        self.poll(0.0)
        # Those whose agent was killed are still there.
        self._send(signal.SIGKILL, list(self._running.values()), with_children=True)
        for call in self._calls:
            call.wait(_GRACE_S)
        for (rank, stream), cutter in self._cutters.items():
            for line in cutter.finish():
                self._sink(rank, stream, line)
        if self.first_failed is not None:
            return self._codes[self.first_failed]
        # Only horovodrun reports a worker whose agent was killed, or a connection that broke.
        for match in filter(None, map(_ENDED.match, self._messages)):
            self.first_failed = int(match[1])
            return int(match[2])
        if run_code not in (0, _EXIT_TEMPFAIL):
            self.failure = "\n".join(["horovodrun did not start the workers:", *self._messages])
        return run_code or (_EXIT_TEMPFAIL if _EXIT_TEMPFAIL in self._codes.values() else 0)


class _Pieces:
    """Cuts horovodrun's output after each return and line end, where it puts a new rank."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> Iterator[Line]:
        """Yield the pieces that `data` completes, with their ends."""
        *pieces, self._rest = re.split(rb"(?<=[\r\n])", self._rest + data)
        yield from map(Line, pieces)

    def finish(self) -> Iterator[Line]:
        """Yield the rest, which has no line end."""
        rest, self._rest = self._rest, b""
        if rest:
            yield Line(rest)


def interface_towards(hosts: Sequence[str]) -> str:
    """Return the name of this machine's network interface that leads to the hosts.

    Raises:
        WorkerError: If a name has no address, or no interface is found.
    """
    sources = [_source_address(_address(host)) for host in hosts]
    source = next((found for found in sources if not found.startswith("127.")), sources[0])
    name = find_interface(source)
    if name is not None:
        return name
    raise WorkerError(
        f"no network interface of this machine has the address {source}, from which it reaches "
        f"{hosts[-1]}.\nName the interface that leads to the other machines: "
        "--network-interface"
    )


def chief_address(hosts: Sequence[str]) -> str:
    """Return the address of the first host, where rank 0 runs, as the others see it.

    Raises:
        WorkerError: If a name has no address.
    """
    addresses = [_address(host) for host in hosts]
    if addresses[0].startswith("127."):
        for address in addresses[1:]:
            source = _source_address(address)
            if not source.startswith("127."):
                return source
    return addresses[0]


def _address(name: str) -> str:
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
