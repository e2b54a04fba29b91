"""Define launchers, which start the workers of a trial, and the services that workers meet over."""

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
    """An event that a worker reported: a ``type`` and its fields."""

    type: str
    fields: Mapping[str, Any]


class OutputSink(Protocol):
    """Takes what workers print; called from threads, for one group one at a time."""

    def __call__(self, rank: int, stream: str, line: str, /) -> None:
        """Take a line that rank `rank` wrote to ``"stdout"`` or ``"stderr"``."""


class WorkerGroup(Protocol):
    """The running workers of a trial: the events of rank 0, its replies, their end.

    When one worker fails (ends with another code than 0 and 75) the others are ended: first they
    are given a moment to end by themselves, then asked with SIGTERM, then killed. One that ends
    with 0 or 75 has not failed, and the others continue. A worker's children end when it does.
    All of that happens within `poll` and `close`, which are called from one thread.

    Attributes:
        pid: The process id of rank 0; 0 before it has started.
        pids: The process ids by rank; 0 for a worker that has not started.
        first_failed: The rank that failed first, None while none has.
        is_alive: Whether a worker is running, or `poll` has not returned all events yet. As of
            the last `poll`.
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

        It may be another one after each `poll`: ask again before each wait. A wait should end after
        0.1 s at the latest, for workers that have to be ended.
        """

    def poll(self) -> list[WorkerEvent]:
        """Return the events that rank 0 sent since the last call, in order, without waiting."""

    def reply(self, **fields: Any) -> None:
        """Answer rank 0, which waits for a line on its channel; JSON values.

        Nothing happens if it is gone.
        """

    def signal(self, number: int = signal.SIGTERM) -> None:
        """Send a signal to every worker that runs: SIGTERM asks it to checkpoint and come back."""

    def kill(self) -> None:
        """End the workers and all they started, at once."""

    def close(self) -> int:
        """Wait for the end, release everything, and return the exit code.

        All that the workers printed was handed to `OutputSink` when it returns.

        Returns:
            The code of the worker that failed first (negative: signal), else 75 if one wants to
            come back later, else 0.
        """


class Launcher(Protocol):
    """Starts workers of trials; closed when the runner needs no more.

    Every worker runs ``python -m detcore.launch.worker`` (`detcore.launch.worker.main`) in the
    folder ``info.model_dir``, leads a separate session, reads nothing (its standard input is
    empty), and gets these variables in addition to those of the launching process:

    ``DETCORE_TRIAL_INFO``
        Path of a file that holds `info` as a JSON object; only its owner may read it.
    ``DETCORE_HOME``
        `home`.
    ``DETCORE_RANK``, ``DETCORE_SIZE``, ``DETCORE_LOCAL_RANK``, ``DETCORE_LOCAL_SIZE``,
    ``DETCORE_CROSS_RANK``, ``DETCORE_CROSS_SIZE``
        Its place among the workers: of all, of its machine, and its machine's among the machines.
    ``DETCORE_JOB_KEY``
        A secret that the workers of one trial share, and no others; new for each start.
    ``DETCORE_CHANNEL_FD``
        The descriptor of one end of a stream socket pair whose other end only the launching process
        holds. Rank 0 writes its messages there (a JSON object with ``type`` per line) and reads
        the answers of `WorkerGroup.reply`. Every worker ends its process group when the other end
        closes, so no worker outlives a launching process that was killed.
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
        """Start the workers of a trial; they end when this process does, however that happens.

        Args:
            info: Which trial they run; its log has been created.
            home: The folder of records and default checkpoints.
            slots: Number of workers; >= 1.
            keep_open: File descriptors that rank 0 inherits (the experiment's lock).
            on_output: Called from threads, for one group one at a time, with the rank,
                ``"stdout"`` or ``"stderr"``, and each line without its end. Bytes that are not
                UTF-8 are replaced. For a line that is rewritten (a progress bar), some of its
                states may be passed as well.
            disabled_plugins: Plugins that are switched off in the workers too.
            allowed_plugins: The only plugins that are on, or None for all.
            variables: More variables for all workers.

        Raises:
            WorkerError: If a worker cannot be started; none is left then.
        """

    def close(self) -> None:
        """Release resources kept between trials; close the groups that it started before."""


@runtime_checkable
class SupportsCheck(Protocol):
    """A launcher that knows before a run begins which trials it can never start."""

    def check_trial(self, settings: TrialSettings, *, slots: int) -> None:
        """Refuse trials that could not be started; called once, before anything is recorded.

        Trials that only have to wait are not refused.

        Args:
            settings: The settings of the trials.
            slots: Number of workers of each trial; >= 1.

        Raises:
            WorkerError: If a trial could not be started; it says why.
        """


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RankPlace:
    """The place of one worker among all, as `detcore.distributed.DistributedContext` counts.

    Attributes:
        rank: Its index over all nodes.
        size: Number of workers over all nodes.
        local_rank: Its index on its node.
        local_size: Number of workers on its node.
        cross_rank: Index of its node.
        cross_size: Number of nodes.
        column_rank: Its index among the workers of other nodes with the same `local_rank`, which
            Horovod calls ``cross_rank``.
        column_size: How many these are.
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
    """Scopes of keys and values; called from threads."""

    def get(self, scope: str, key: str) -> bytes | None:
        """Return a value, or None if it is not set yet."""

    def put(self, scope: str, key: str, value: bytes) -> bool:
        """Keep a value; return whether there was room for it."""

    def delete(self, scope: str, key: str) -> None:
        """Record that a rank has left a scope."""


class Rendezvous(Protocol):
    """A service that runs on one machine while the job's workers there do."""

    def variables(
        self, place: RankPlace, *, interface: str | None, gradients: GradientSettings
    ) -> dict[str, str]:
        """Return the environment variables by which a worker finds the service.

        Args:
            place: The worker, which is on this machine.
            interface: The network interface through which it reaches the others, or None.
            gradients: How the workers combine gradients; the defaults for a command that is no
                trial.
        """

    def close(self) -> None:
        """Release ports."""


class RendezvousService(Protocol):
    """The service of one library, for jobs of several workers."""

    def make_store(self, places: Sequence[RankPlace]) -> RendezvousStore:
        """Return the values of a job, which are kept with rank 0.

        Args:
            places: All workers, by rank.
        """

    def open(self, places: Sequence[RankPlace], store: RendezvousStore) -> Rendezvous:
        """Start the service on this machine.

        Args:
            places: All workers, by rank.
            store: The job's values, or an object that reaches them on another machine.
        """


@dataclasses.dataclass(frozen=True, slots=True)
class Line:
    """A line without its end.

    Attributes:
        text: Its content.
        is_final: False for a state of a line that is still being rewritten, as progress bars are.
    """

    text: bytes
    is_final: bool = True


class Sink(Protocol):
    """Takes what workers print; called from one thread at a time."""

    def __call__(self, rank: int, stream: str, line: Line) -> None:
        """Take a line that rank `rank` wrote to ``"stdout"`` or ``"stderr"``."""
