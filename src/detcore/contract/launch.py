"""Define launchers, which start the workers of a trial, and rendezvous services for workers."""

from __future__ import annotations

import dataclasses
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from detcore.contract.values import GradientSettings, TrialInfo, TrialSettings

__all__ = [
    "Launcher", "Line", "OutputSink", "RankPlace", "Rendezvous", "RendezvousService",
    "RendezvousStore", "Sink", "SupportsCheck", "WorkerEvent", "WorkerGroup",
]  # fmt: skip


@dataclasses.dataclass(frozen=True, slots=True)
class WorkerEvent:
    """An event reported by a worker: a ``type`` and its fields."""

    type: str
    fields: Mapping[str, Any]


class OutputSink(Protocol):
    """Receives the output of workers. Called from threads, one call at a time per group."""

    def __call__(self, rank: int, stream: str, line: str, /) -> None:
        """Receive a line that rank `rank` wrote to ``"stdout"`` or ``"stderr"``."""


class WorkerGroup(Protocol):
    """The running workers of a trial, with the events of rank 0 and the replies to it.

    When one worker fails (exits with a code other than 0 and 75), the group ends: the remaining
    workers get a moment to exit, then SIGTERM, then SIGKILL. A worker that exits with 0 or 75 has
    not failed, and the remaining workers continue. A worker's children end when it does. All of
    this happens within `poll` and `close`, which are called from one thread.

    Attributes:
        pid: The process id of rank 0; 0 before it has started.
        pids: The process ids by rank; 0 for a worker that has not started.
        first_failed: The rank that failed first; None if no rank has failed.
        is_alive: Whether, at the last `poll`, a worker was running or `poll` had not returned all
            events yet.
    """

    @property
    def pid(self) -> int: ...

    @property
    def pids(self) -> list[int]: ...

    @property
    def first_failed(self) -> int | None: ...

    @property
    def is_alive(self) -> bool: ...

    def fileno(self) -> int:
        """Return a descriptor that is readable when `poll` has something to do.

        The descriptor may change with each `poll`, so call this before each wait. A wait should
        last at most 0.1 s, because `poll` also terminates workers.
        """

    def poll(self) -> list[WorkerEvent]:
        """Return the events that rank 0 sent since the last call, in order, without waiting."""

    def reply(self, **fields: Any) -> None:
        """Answer rank 0, which waits for a line on its channel; JSON values.

        Does nothing if rank 0 has exited.
        """

    def signal(self, number: int = signal.SIGTERM) -> None:
        """Send a signal to every running worker. SIGTERM requests a checkpoint and code 75."""

    def kill(self) -> None:
        """Kill the workers and all processes that they started, immediately."""

    def close(self) -> int:
        """Wait for the workers to exit, release everything, and return the exit code.

        When this returns, `OutputSink` has received all output of the workers.

        Returns:
            The code of the worker that failed first (negative: signal). If no worker failed, 75 if
            a worker exited with 75, and 0 otherwise.
        """


class Launcher(Protocol):
    """Starts workers of trials. The runner closes it when it needs no more workers.

    A launcher often starts the workers through `detcore.launch.LocalLauncher`, with more settings::

        >>> from detcore.launch import LocalLauncher
        >>> class NiceLauncher(LocalLauncher):
        ...     def start(self, info, *, variables=None, **options):
        ...         variables = {"OMP_NUM_THREADS": "1", **(variables or {})}
        ...         return super().start(info, variables=variables, **options)
        >>> NiceLauncher().close()

    Every worker runs ``python -m detcore.launch.worker`` (`detcore.launch.worker.main`) in the
    directory ``info.model_dir``, leads a separate session, and has an empty standard input. It gets
    these variables in addition to those of the launching process:

    ``DETCORE_TRIAL_INFO``
        Path of a file that contains `info` as a JSON object. Only its owner may read it.
    ``DETCORE_HOME``
        `home`.
    ``DETCORE_RANK``, ``DETCORE_SIZE``, ``DETCORE_LOCAL_RANK``, ``DETCORE_LOCAL_SIZE``,
    ``DETCORE_CROSS_RANK``, ``DETCORE_CROSS_SIZE``
        The worker's rank among all workers, among those of its machine, and the index of its
        machine.
    ``DETCORE_JOB_KEY``
        A secret that only the workers of one trial share; new for each start.
    ``DETCORE_CHANNEL_FD``
        The descriptor of one end of a stream socket pair. Only the launching process holds the
        other end. Rank 0 writes its messages there (a JSON object with ``type`` per line) and reads
        the answers of `WorkerGroup.reply`. Every worker ends its process group when the other end
        closes, so no worker outlives a killed launching process.
    ``DETCORE_DISABLE_PLUGINS``, ``DETCORE_PLUGINS``
        `disabled_plugins` and, unless it is None, `allowed_plugins`, separated by commas.
    """

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
    ) -> WorkerGroup:
        """Start the workers of a trial. They end when this process does, even if it is killed.

        Args:
            info: The trial that they run. Its log has been created.
            home: The directory of records and default checkpoints.
            slots: Number of workers; >= 1.
            keep_open: File descriptors that rank 0 inherits (the experiment's lock).
            on_output: Called from threads, one call at a time per group, with the rank,
                ``"stdout"`` or ``"stderr"``, and each line without its end. Bytes that are not
                UTF-8 are replaced. For a line that is rewritten (a progress bar), some
                intermediate states may be passed as well.
            disabled_plugins: Plugins that are switched off in the workers too.
            allowed_plugins: The only plugins that are on, or None for all.
            variables: More variables for all workers.

        Raises:
            WorkerError: If a worker cannot be started. No worker is left running then.
        """

    def close(self) -> None:
        """Release resources kept between trials. Callers close all groups first."""


@runtime_checkable
class SupportsCheck(Protocol):
    """A launcher that can tell before a run starts that it can never start some trials."""

    def check_trial(self, settings: TrialSettings, *, slots: int) -> None:
        """Reject trials that could never start, but not trials that only have to wait.

        Args:
            settings: The settings of the trials.
            slots: Number of workers of each trial; >= 1.

        Raises:
            WorkerError: If a trial could not be started, with the reason and perhaps the `setting`.
        """


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RankPlace:
    """The ranks of one worker, as in `detcore.distributed.DistributedContext`.

    Attributes:
        rank: Index of the worker over all nodes.
        size: Number of workers over all nodes.
        local_rank: Index of the worker on its node.
        local_size: Number of workers on its node.
        cross_rank: Index of its node.
        cross_size: Number of nodes.
        column_rank: Index among the workers with the same `local_rank` on all nodes, which Horovod
            calls ``cross_rank``.
        column_size: Number of workers with the same `local_rank`.
    """

    rank: int
    size: int
    local_rank: int
    local_size: int
    cross_rank: int
    cross_size: int
    column_rank: int
    column_size: int


class RendezvousStore(Protocol):
    """Keys and values in scopes; called from threads."""

    def get(self, scope: str, key: str) -> bytes | None:
        """Return a value, or None if it is not set yet."""

    def put(self, scope: str, key: str, value: bytes) -> bool:
        """Store a value; return False if there was not enough space."""

    def delete(self, scope: str, key: str) -> None:
        """Record that a rank has left a scope."""


class Rendezvous(Protocol):
    """A service that runs on one machine as long as the job's workers there."""

    def variables(
        self, place: RankPlace, *, interface: str | None, gradients: GradientSettings
    ) -> dict[str, str]:
        """Return the environment variables through which a worker finds the service.

        Args:
            place: The worker, which is on this machine.
            interface: The network interface that reaches the other workers, or None.
            gradients: How the workers combine gradients; the defaults for a plain command.
        """

    def close(self) -> None:
        """Release ports."""


class RendezvousService(Protocol):
    """The service of one library, for jobs of several workers."""

    def make_store(self, places: Sequence[RankPlace]) -> RendezvousStore:
        """Create the store of a job, which rank 0 keeps.

        Args:
            places: All workers, by rank.
        """

    def open(self, places: Sequence[RankPlace], store: RendezvousStore) -> Rendezvous:
        """Start the service on this machine.

        Args:
            places: All workers, by rank.
            store: The job's store, or a proxy for it on another machine.
        """


@dataclasses.dataclass(frozen=True, slots=True)
class Line:
    """A line without its end.

    Attributes:
        text: Content of the line.
        is_final: False for an intermediate state of a line that is rewritten, such as a progress
            bar.
    """

    text: bytes
    is_final: bool = True


class Sink(Protocol):
    """Receives the output of workers; called from one thread at a time."""

    def __call__(self, rank: int, stream: str, line: Line) -> None:
        """Receive a line that rank `rank` wrote to ``"stdout"`` or ``"stderr"``."""
