"""Start the workers of a trial as processes of this machine."""

from __future__ import annotations

import contextlib
import functools
import json
import math
import pkgutil
import socket
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

from detcore.contract.errors import PluginError, WorkerError
from detcore.contract.launch import Line, OutputSink, RendezvousService, WorkerEvent
from detcore.contract.values import TrialInfo
from detcore.environment import read_environment
from detcore.launch.job_variables import LocalJob
from detcore.launch.output_lines import RewriteLimit
from detcore.launch.worker_group import SupervisedGroup, Wake, find_linger_s
from detcore.launch.worker_processes import (
    WorkerProcess,
    Workers,
    find_stop_timeout_s,
    start_process,
)

if TYPE_CHECKING:
    from detcore.plugins import PluginManager

_READ_BYTES = 1 << 16
_WORKER = (sys.executable, "-m", "detcore.launch.worker")

# Interval at which the state of a progress bar becomes a line.
_UPDATE_INTERVAL_S = 10.0


class LocalSettings(BaseModel):
    """Settings of the launcher ``local`` in an experiment file, which has no settings."""


def _make_stop_timeout(info: TrialInfo) -> Callable[[int], float]:
    """Return a function that returns the number of seconds a trial may run after a signal."""
    grace_s = info.settings.preemption_grace_s
    if grace_s is None:
        grace_s = read_environment().grace_s
    # A pause also sends SIGINT.
    return functools.partial(find_stop_timeout_s, grace_s=grace_s, interrupt_timeout_s=math.inf)


class LocalLauncher:
    """Starts the workers of a trial as processes of this machine.

    Args:
        fork_frameworks: Names of the frameworks that a fork server imports. It forks the workers of
            trials with one worker (Linux only). None: every worker is a new process.
        notice: Called with messages for the user.
        plugins: Provide rendezvous services for trials of several workers. None: each trial
            searches for plugins.
        environment: All variables of the only worker of each trial, except those that identify the
            trial. None: the variables of this process, and those of the worker's rank.
    """

    def __init__(
        self,
        *,
        fork_frameworks: Sequence[str] | None = None,
        notice: Callable[[str], None] = lambda text: None,
        plugins: PluginManager | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._environment = environment
        self._plugins = plugins
        self._fork_server = None
        if fork_frameworks is not None and sys.platform == "linux":
            from detcore.launch.forked_workers import ForkServer

            self._fork_server = ForkServer(fork_frameworks, notice)

    def start(
        self,
        info: TrialInfo,
        *,
        home: Path,
        slots: int = 1,
        keep_open: tuple[int, ...] = (),
        on_output: OutputSink,
        disabled_plugins: frozenset[str] = frozenset(),
        allowed_plugins: frozenset[str] | None = None,
        variables: Mapping[str, str] | None = None,
    ) -> LocalWorkerGroup:
        """Start the workers; see `detcore.launch.Launcher.start`.

        Raises:
            WorkerError: If a process cannot be started.
            PluginError: If a service of a plugin cannot be imported.
        """
        from detcore.plugins.delivery import write_run

        trial_variables = _make_worker_variables(
            home,
            disabled_plugins,
            allowed_plugins,
            variables=variables or {},
            trial_info=str(write_run(info)),
        )
        is_class = info.settings.is_trial_class
        start_worker = functools.partial(
            self._start_worker, cwd=Path(info.model_dir), can_fork=slots == 1 and is_class
        )
        services = self._make_services(slots, disabled_plugins, allowed_plugins)
        channels: list[socket.socket] = []
        with contextlib.ExitStack() as on_failure:
            job = LocalJob(slots, services=services, gradients=info.settings.gradients)
            on_failure.callback(job.close)
            wake = Wake()
            on_failure.callback(wake.close)
            workers = Workers(
                LineSink(on_output),
                linger_s=find_linger_s(info),
                stop_s=_make_stop_timeout(info),
                on_end=wake.set,
            )
            on_failure.callback(workers.close)
            on_failure.callback(workers.kill)
            for rank in range(slots):
                environment = job.make_environment(rank, trial_variables)
                if self._environment is not None:
                    environment = {**self._environment, **trial_variables}
                process, channel = start_worker(rank, environment, () if rank else keep_open)
                on_failure.callback(channel.close)
                channels.append(channel)
                workers.adopt(process)
            on_failure.pop_all()
        return LocalWorkerGroup(workers, job, channels=channels, wake=wake)

    def _make_services(
        self, slots: int, disabled_plugins: frozenset[str], allowed_plugins: frozenset[str] | None
    ) -> dict[str, RendezvousService]:
        """Return the rendezvous services of a trial. A single worker needs no services."""
        if slots == 1:
            return {}
        if self._plugins is not None:
            return create_services(self._plugins)
        return find_services(disabled_plugins=disabled_plugins, allowed_plugins=allowed_plugins)

    def _start_worker(
        self,
        rank: int,
        environment: Mapping[str, str],
        keep_open: Sequence[int],
        *,
        cwd: Path,
        can_fork: bool,
    ) -> tuple[WorkerProcess, socket.socket]:
        """Start a worker, and return its process and the runner's end of its channel.

        Args:
            rank: Rank of the worker, for messages.
            environment: All variables of the worker except ``DETCORE_CHANNEL_FD``.
            keep_open: Descriptors that the worker inherits, in addition to its end of the channel.
            cwd: Working directory of the worker.
            can_fork: Whether the fork server may fork the worker.

        Raises:
            WorkerError: If the worker cannot be started.
        """
        server = self._fork_server if can_fork else None
        try:
            runner_end, worker_end = socket.socketpair()
            with worker_end, contextlib.ExitStack() as on_failure:
                on_failure.callback(runner_end.close)
                variables = {**environment, "DETCORE_CHANNEL_FD": str(worker_end.fileno())}
                inherited = (worker_end.fileno(), *keep_open)
                forked = server.start(variables, cwd=cwd, keep_open=inherited) if server else None
                process: WorkerProcess = forked or start_process(
                    _WORKER, variables, inherited, cwd=cwd
                )
                on_failure.pop_all()
        except OSError as error:
            raise WorkerError(f"rank {rank} ({sys.executable}) did not start: {error}") from error
        return process, runner_end

    def close(self) -> None:
        """Kill the fork server and the workers that it has forked."""
        if self._fork_server is not None:
            self._fork_server.close()
            self._fork_server = None


def _make_worker_variables(
    home: Path,
    disabled_plugins: frozenset[str],
    allowed_plugins: frozenset[str] | None,
    *,
    variables: Mapping[str, str],
    trial_info: str,
) -> dict[str, str]:
    """Return the variables that all workers of a trial share, without ranks and channels.

    Args:
        home: The directory of records and default checkpoints.
        disabled_plugins: Plugins that are switched off.
        allowed_plugins: The only plugins that are on, or None for all.
        variables: More variables.
        trial_info: Path of the file that describes the trial.
    """
    worker_variables = {
        **variables,
        "DETCORE_HOME": str(home),
        "DETCORE_TRIAL_INFO": trial_info,
        "DETCORE_DISABLE_PLUGINS": ",".join(sorted(disabled_plugins)),
        "PYTHONUNBUFFERED": "1",
    }
    if allowed_plugins is not None:
        worker_variables["DETCORE_PLUGINS"] = ",".join(sorted(allowed_plugins))
    return worker_variables


class LineSink:
    """Passes lines on as strings, with the final state and some earlier states of progress bars."""

    def __init__(self, on_output: OutputSink) -> None:
        self._on_output = on_output
        self._limit = RewriteLimit(_UPDATE_INTERVAL_S)

    def __call__(self, rank: int, stream: str, line: Line) -> None:
        if self._limit.should_show(rank, stream, line):
            self._on_output(rank, stream, line.text.decode("utf-8", "replace"))


def find_services(
    *,
    disabled_plugins: frozenset[str] = frozenset(),
    allowed_plugins: frozenset[str] | None = None,
) -> dict[str, RendezvousService]:
    """Return the rendezvous services that plugins have registered, by name.

    Args:
        disabled_plugins: Plugins that are switched off.
        allowed_plugins: The only plugins that are on, or None for all.

    Raises:
        PluginError: If a service cannot be imported.
    """
    from detcore.plugins import PluginManager

    return create_services(
        PluginManager(read_environment(), disabled=disabled_plugins, allowed=allowed_plugins)
    )


def create_services(plugins: PluginManager) -> dict[str, RendezvousService]:
    """Return the rendezvous services that plugins have registered; see `find_services`."""
    return {
        name: _create_service(name, kind.service) for name, kind in plugins.rendezvous().items()
    }


def _create_service(name: str, service: str) -> RendezvousService:
    try:
        instance: RendezvousService = pkgutil.resolve_name(service)()
    except (ImportError, AttributeError) as error:
        raise PluginError(
            f"the rendezvous service {name!r} ({service}) cannot be imported: {error}"
        ) from error
    return instance


class ChannelEnd:
    """The runner's end of the channel to rank 0 of a trial; see `detcore.core.Channel`.

    Args:
        end: One end of a socket pair. The caller closes it.

    Attributes:
        is_open: Whether the worker could send more at the last `read`.
    """

    def __init__(self, end: socket.socket) -> None:
        self._end = end
        self._end.setblocking(False)
        self._buffer = b""
        self._unsent = b""
        self.is_open = True

    def fileno(self) -> int:
        """Return the descriptor that is readable when there is something to read."""
        return self._end.fileno()

    def read(self) -> list[WorkerEvent]:
        """Return the received events, and send replies that did not fit before."""
        events: list[WorkerEvent] = []
        while self.is_open:
            try:
                data = self._end.recv(_READ_BYTES)
            except BlockingIOError:
                break
            except ConnectionResetError:  # the worker exited without reading all replies
                data = b""
            self.is_open = bool(data)
            events += self._parse_events(data)
        self._send_replies()
        return events

    def _parse_events(self, data: bytes) -> Iterator[WorkerEvent]:
        *lines, self._buffer = (self._buffer + data).split(b"\n")
        for line in lines:
            fields = json.loads(line)
            yield WorkerEvent(str(fields.pop("type")), fields)

    def reply(self, **fields: Any) -> None:
        """Send a reply as far as it fits into the channel. The next `read` sends the rest."""
        self._unsent += json.dumps(fields).encode() + b"\n"
        self._send_replies()

    def _send_replies(self) -> None:
        try:
            while self._unsent:
                self._unsent = self._unsent[self._end.send(self._unsent) :]
        except BlockingIOError:
            pass
        except (BrokenPipeError, ConnectionResetError):
            self._unsent = b""  # the worker has exited


class LocalWorkerGroup(SupervisedGroup):
    """Workers that are processes of this machine; see `WorkerGroup`.

    Args:
        workers: The processes. They set `wake` when a process has exited.
        job: The job of the workers; closed with the group.
        channels: The runner's ends of the workers' channels, by rank; closed with the group.
        wake: Readable when a process has exited.
    """

    def __init__(
        self,
        workers: Workers,
        job: LocalJob,
        *,
        channels: Sequence[socket.socket],
        wake: Wake,
    ) -> None:
        super().__init__(workers, wake)
        self._job = job
        self._channels = channels
        self._chief = ChannelEnd(channels[0])

    def fileno(self) -> int:
        # A channel at its end would always be readable.
        return self._chief.fileno() if self._chief.is_open else self._wake.fileno()

    def read_events(self) -> list[WorkerEvent]:
        return self._chief.read()

    def reply(self, **fields: Any) -> None:
        self._chief.reply(**fields)

    def release(self) -> None:
        self._job.close()
        for channel in self._channels:
            channel.close()
