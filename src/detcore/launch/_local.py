"""Workers as processes of this machine."""

from __future__ import annotations

import contextlib
import functools
import math
import pkgutil
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import BaseModel

from detcore.contract.errors import PluginError, WorkerError
from detcore.contract.launch import Line, OutputSink, RendezvousService
from detcore.contract.values import TrialInfo
from detcore.environment import read_environment
from detcore.launch._forked import ForkedWorker, ForkServer
from detcore.launch._group import LocalWorkerGroup, Wake
from detcore.launch._job import LocalJob
from detcore.launch._lines import RewriteLimit
from detcore.launch._workers import (
    WorkerProcess,
    Workers,
    find_stop_timeout_s,
    start_process,
)

if TYPE_CHECKING:
    from detcore.hooks import PluginManager


_WORKER = (sys.executable, "-m", "detcore.launch.worker")

# The workers of a trial class end together; one may hang while it takes its framework down.
_LINGER_S = 60.0
# How often a progress bar's state becomes a line.
_UPDATE_INTERVAL_S = 10.0


class LocalSettings(BaseModel):
    """Settings of the launcher ``local`` in an experiment file: it has none."""


def _make_stop_timeout(info: TrialInfo) -> Callable[[int], float]:
    """Return a function that returns how long a trial may take to end after a signal."""
    grace_s = info.config.get("preemption_grace_s")
    if grace_s is None:
        grace_s = read_environment().grace_s
    # A pause, too, sends SIGINT.
    return functools.partial(find_stop_timeout_s, grace_s=grace_s, interrupt_timeout_s=math.inf)


class LocalLauncher:
    """Starts the workers of a trial as processes of this machine.

    Args:
        fork_frameworks: Names of the frameworks that one process imports, from which the workers
            of trials with one worker are forked (Linux only). None: every worker starts plainly.
        notice: Called with messages for the user.
        plugins: Provide services for trials of several workers; None: each trial looks for them.
        environment: All variables of the only worker of each trial, but for those that say which
            trial it is; None: those of this process, and those of its place.
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
        from detcore.hooks.delivery import write_run

        told = _worker_variables(
            home,
            disabled_plugins,
            allowed_plugins,
            variables=variables or {},
            trial_info=str(write_run(info)),
        )
        # Imported by a worker it would be there before it is run.
        from detcore.launch.worker import is_trial_class

        services: Mapping[str, RendezvousService] = {}
        if slots > 1 and self._plugins is not None:
            services = make_services(self._plugins)
        elif slots > 1:
            services = find_services(
                disabled_plugins=disabled_plugins, allowed_plugins=allowed_plugins
            )
        cwd, is_class = info.model_dir, is_trial_class(info.config["entrypoint"])
        can_fork = slots == 1 and is_class

        def begin(environment: Mapping[str, str], inherited: Sequence[int]) -> WorkerProcess:
            forked = self._fork(environment, Path(cwd), inherited) if can_fork else None
            return forked or start_process(_WORKER, environment, inherited, cwd=cwd)

        channels: list[socket.socket] = []
        with contextlib.ExitStack() as on_failure:
            job = LocalJob(slots, services=services, config=info.config)
            on_failure.callback(job.close)
            wake = Wake()
            on_failure.callback(wake.close)
            workers = Workers(
                LineSink(on_output),
                linger_s=_LINGER_S if is_class else None,
                stop_s=_make_stop_timeout(info),
                on_end=wake.set,
            )
            for rank in range(slots):
                environment, inherited = job.environment(rank, told), () if rank else keep_open
                if self._environment is not None:
                    environment = {**self._environment, **told}
                try:
                    process, channel = _start_worker(environment, inherited, begin)
                except OSError as error:
                    workers.kill()
                    workers.close()
                    raise WorkerError(
                        f"rank {rank} ({sys.executable}) did not start: {error}"
                    ) from error
                on_failure.callback(channel.close)
                channels.append(channel)
                workers.adopt(process)
            on_failure.pop_all()
        return LocalWorkerGroup(workers, job, channels=channels, wake=wake)

    def _fork(
        self, environment: Mapping[str, str], cwd: Path, keep_open: Sequence[int]
    ) -> ForkedWorker | None:
        """Return a worker that has its imports already, or None if none is available."""
        if self._fork_server is None:
            return None
        return self._fork_server.start(environment, cwd=cwd, keep_open=keep_open)

    def close(self) -> None:
        """End the process kept between trials, with the workers that it has forked."""
        if self._fork_server is not None:
            self._fork_server.close()
            self._fork_server = None


def _start_worker(
    environment: Mapping[str, str],
    keep_open: Sequence[int],
    start: Callable[[Mapping[str, str], Sequence[int]], WorkerProcess],
) -> tuple[WorkerProcess, socket.socket]:
    """Start a worker; return its process, and the runner's end of its channel.

    Args:
        environment: All of its variables but ``DETCORE_CHANNEL_FD``.
        keep_open: Descriptors that it inherits, in addition to its end of the channel.
        start: Starts the process, with all variables and descriptors.

    Raises:
        OSError: If it cannot be started.
    """
    here, there = socket.socketpair()
    with there, contextlib.ExitStack() as on_failure:
        on_failure.callback(here.close)
        full = {**environment, "DETCORE_CHANNEL_FD": str(there.fileno())}
        process = start(full, (there.fileno(), *keep_open))
        on_failure.pop_all()
    return process, here


def _worker_variables(
    home: Path,
    disabled_plugins: frozenset[str],
    allowed_plugins: frozenset[str] | None,
    *,
    variables: Mapping[str, str],
    trial_info: str,
) -> dict[str, str]:
    """Return the variables of all workers of a trial, but for their places and channels.

    Args:
        home: The folder of records and default checkpoints.
        disabled_plugins: Plugins that are switched off.
        allowed_plugins: The only plugins that are on, or None for all.
        variables: More variables.
        trial_info: Path of the file that says which trial it is.
    """
    told = {
        **variables,
        "DETCORE_HOME": str(home),
        "DETCORE_TRIAL_INFO": trial_info,
        "DETCORE_DISABLE_PLUGINS": ",".join(sorted(disabled_plugins)),
        "PYTHONUNBUFFERED": "1",
    }
    if allowed_plugins is not None:
        told["DETCORE_PLUGINS"] = ",".join(sorted(allowed_plugins))
    return told


class LineSink:
    """Passes lines on as text; of a progress bar, its final state and some earlier ones."""

    def __init__(self, on_output: OutputSink) -> None:
        self._on_output = on_output
        self._limit = RewriteLimit(_UPDATE_INTERVAL_S)

    def __call__(self, rank: int, stream: str, line: Line) -> None:
        if self._limit.lets_through(rank, stream, line):
            self._on_output(rank, stream, line.text.decode("utf-8", "replace"))


def find_services(
    *,
    disabled_plugins: frozenset[str] = frozenset(),
    allowed_plugins: frozenset[str] | None = None,
) -> dict[str, RendezvousService]:
    """Return the services that plugins have registered, by name.

    Args:
        disabled_plugins: Plugins that are switched off.
        allowed_plugins: The only plugins that are on, or None for all.

    Raises:
        PluginError: If a service cannot be imported.
    """
    from detcore.hooks import PluginManager

    return make_services(
        PluginManager(read_environment(), disabled=disabled_plugins, allowed=allowed_plugins)
    )


def make_services(plugins: PluginManager) -> dict[str, RendezvousService]:
    """Return the services that plugins have registered, by name; see `find_services`."""
    return {name: _make(name, kind.service) for name, kind in plugins.rendezvous().items()}


def _make(name: str, service: str) -> RendezvousService:
    try:
        made: RendezvousService = pkgutil.resolve_name(service)()
    except (ImportError, AttributeError) as error:
        raise PluginError(
            f"the rendezvous {name!r} ({service}) cannot be imported: {error}"
        ) from error
    return made
