"""Workers as processes of this machine."""

from __future__ import annotations

import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from detcore.errors import WorkerError
from detcore.launch._group import LocalWorkerGroup, OutputSink, Wake
from detcore.launch._job import LocalJob
from detcore.launch._lines import Line
from detcore.launch._rendezvous import RendezvousService, find_services, make_services
from detcore.launch._warm_parent import WarmParent, WarmProcess, is_possible
from detcore.launch._workers import Workers
from detcore.types import TrialInfo

if TYPE_CHECKING:
    from detcore.hooks import PluginManager
    from detcore.launch._early import EarlyWorker

__all__ = ["LineSink", "LocalLauncher", "worker_variables"]

# The workers of a trial class end together; one may hang while it takes its framework down.
_LINGER_S = 60.0
# How often a progress bar's state becomes a line.
_UPDATE_INTERVAL_S = 10.0


class LocalLauncher:
    """Starts the workers of a trial as processes of this machine.

    Args:
        preload: Modules that one process imports, from which the workers of trials with one worker
            are forked as soon as it has; None: every worker starts by itself.
        notice: Called with messages for the user.
        early: A worker that waits for the first trial.
        plugins: Provide services for trials of several workers; None: each trial looks for them.
    """

    def __init__(
        self,
        *,
        preload: Sequence[str] | None = None,
        notice: Callable[[str], None] = lambda text: None,
        early: EarlyWorker | None = None,
        plugins: PluginManager | None = None,
    ) -> None:
        self._early = early
        self._plugins = plugins
        can_fork = preload is not None and is_possible()
        self._warm = WarmParent(preload or ()) if can_fork else None
        self._notice = notice

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
        """Start the workers; they end when this process does, however that happens.

        Args:
            info: Which trial they run.
            home: The folder of records and default checkpoints.
            slots: Number of workers; >= 1.
            keep_open: File descriptors that rank 0 inherits (the experiment's lock).
            on_output: Called from threads, one at a time, with the rank, ``"stdout"`` or
                ``"stderr"``, and the line.
            disabled_plugins: Plugins that are switched off in the workers too.
            allowed_plugins: The only plugins that are on, or None for all.
            variables: More variables for all workers.

        Raises:
            WorkerError: If a process cannot be started.
            PluginError: If a service of a plugin cannot be imported.
        """
        from detcore.delivery import write_run

        told = worker_variables(
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
        job = LocalJob(slots, services=services, config=info.config)
        is_class = is_trial_class(info.config["entrypoint"])
        linger_s = _LINGER_S if is_class else None
        wake = Wake()
        workers = Workers(LineSink(on_output), linger_s=linger_s, on_end=wake.set)
        channels: list[socket.socket] = []
        theirs: list[socket.socket] = []
        try:
            for rank in range(slots):
                early = self._take_early(info, job, told, keep_open)
                if early is not None:
                    channels.append(early.channel)
                    workers.adopt(early.process)
                    continue
                here, there = socket.socketpair()
                channels.append(here)
                theirs.append(there)
                environment = job.environment(
                    rank, {**told, "DETCORE_CHANNEL_FD": str(there.fileno())}
                )
                inherited = (there.fileno(), *(() if rank else keep_open))
                process = None
                if slots == 1 and is_class:
                    process = self._fork(environment, Path(info.model_dir), inherited)
                if process is not None:
                    workers.adopt(process)
                    continue
                workers.start(
                    [sys.executable, "-m", "detcore.launch.worker"],
                    environment,
                    cwd=info.model_dir,
                    keep_open=inherited,
                )
        except WorkerError:
            job.close()
            wake.close()
            for channel in channels:
                channel.close()
            raise
        finally:
            for channel in theirs:
                channel.close()
        return LocalWorkerGroup(workers, job, channels=channels, wake=wake)

    def _take_early(
        self, info: TrialInfo, job: LocalJob, told: Mapping[str, str], keep_open: tuple[int, ...]
    ) -> EarlyWorker | None:
        """Give the trial to the worker that was started early; return None if it does not fit.

        A worker that the first trial does not take is ended, whatever the next ones are.
        """
        early, self._early = self._early, None
        if early is None:
            return None
        entrypoint, environment = info.config["entrypoint"], job.environment(0, told)
        is_taken = early.take(entrypoint, Path(info.model_dir), environment, keep_open)
        return early if is_taken else None

    def _fork(
        self, environment: Mapping[str, str], cwd: Path, keep_open: tuple[int, ...]
    ) -> WarmProcess | None:
        """Return a worker that has its imports already, or None if none is available."""
        if self._warm is None:
            return None
        process = self._warm.start(environment, cwd=cwd, keep_open=keep_open)
        if self._warm.lost is not None:
            self._notice(f"{self._warm.lost}; trials start by themselves from now on")
            self.close()
        return process

    def close(self) -> None:
        """End the process kept between trials, with the workers that it has forked."""
        if self._early is not None:
            self._early.close()
        if self._warm is not None:
            self._warm.close()
            self._warm = None


def worker_variables(
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
        self._shown_at: dict[tuple[int, str], float] = {}

    def __call__(self, rank: int, stream: str, line: Line) -> None:
        if line.is_final:
            self._shown_at.pop((rank, stream), None)
        elif not self._is_due(rank, stream):
            return
        self._on_output(rank, stream, line.text.decode("utf-8", "replace"))

    def _is_due(self, rank: int, stream: str) -> bool:
        now = time.monotonic()
        if now - self._shown_at.setdefault((rank, stream), now) < _UPDATE_INTERVAL_S:
            return False
        self._shown_at[rank, stream] = now
        return True
