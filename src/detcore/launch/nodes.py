"""Tools for launchers that start the workers of one trial on several machines.

The launcher decides on which machine each rank runs, and carries a few values between the machines.
This module does the rest: it numbers the workers (`place_ranks`), computes their environment
variables (`rank_variables`), starts one of them on its machine (`start_rank`), runs the
services of plugins by which libraries such as Horovod find the other workers (`find_services`),
handles the failure of one of them (`Workers`), and brings the trial's log to the runner from a
machine that does not share its folders (`LogSource` there, `LogCopy` here).
A service that can start any command on several machines is a `SupportsHosts`.
Tests that start workers without a runner create the log themselves (`create_log`).

Names that only jobs of several machines need are in the distribution detcore-horovod; they are also
found here.
"""

from __future__ import annotations

import contextlib
import functools
import signal
from collections.abc import Iterator, Mapping
from pathlib import Path

from detcore._log import open_log
from detcore.contract.errors import WorkerError
from detcore.contract.launch import (
    Line,
    OutputSink,
    RankPlace,
    Rendezvous,
    RendezvousService,
    RendezvousStore,
    Sink,
)
from detcore.contract.values import TrialInfo
from detcore.launch._group import LocalWorkerGroup
from detcore.launch._job import LocalJob, place_variables
from detcore.launch._lines import LineCutter
from detcore.launch._local import (
    WORKER,
    LineSink,
    find_services,
    start_group,
    start_worker,
    worker_variables,
)
from detcore.launch._places import place_ranks, without_outer_job
from detcore.launch._workers import RemoteProcess, Workers, start_process
from detcore.lazy import lazy_names

__all__ = [
    "Line",
    "LineCutter",
    "LocalJob",
    "RankPlace",
    "RemoteProcess",
    "Rendezvous",
    "RendezvousService",
    "RendezvousStore",
    "Sink",
    "Workers",
    "create_log",
    "find_services",
    "place_ranks",
    "place_variables",
    "start_rank",
    "without_outer_job",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "detcore_horovod": (
            "HostsJob HostsRequest LogCopy LogSource SupportsHosts "
            "interface_with log_header rank_variables"
        )
    },
)


def start_rank(
    info: TrialInfo,
    environment: Mapping[str, str],
    *,
    rank: int,
    home: Path,
    on_output: OutputSink,
    disabled_plugins: frozenset[str] = frozenset(),
    allowed_plugins: frozenset[str] | None = None,
) -> LocalWorkerGroup:
    """Start one worker of a trial on this machine; it ends when this process does.

    Args:
        info: Which trial it runs, with folders of this machine.
        environment: All of its variables, except those that the other arguments determine.
        rank: Which worker it is.
        home: The folder of records and default checkpoints.
        on_output: Called from threads, one at a time, with `rank`, the stream and the line.
        disabled_plugins: Plugins that are switched off in it.
        allowed_plugins: The only plugins that are on, or None for all.

    Returns:
        A group of this worker alone.

    Raises:
        WorkerError: If it cannot be started.
    """
    from detcore.delivery import write_run

    try:
        path = write_run(info)
    except OSError as error:
        raise WorkerError(
            f"rank {rank} did not start: nothing can be written below {info.trial_dir} on this "
            f"machine: {error.strerror}.\nDETCORE_HOME ({home}) is to be a folder that every "
            "machine of the trial may make or has in common."
        ) from error
    told = worker_variables(
        home, disabled_plugins, allowed_plugins, variables=environment, trial_info=str(path)
    )
    sink = LineSink(lambda _, stream, line: on_output(rank, stream, line))
    with _all_signals():
        begin = functools.partial(start_process, WORKER, cwd=info.model_dir)
        return start_group([lambda: start_worker(told, (), begin)], sink)


@contextlib.contextmanager
def _all_signals() -> Iterator[None]:
    """Block no signals in a block: a process that is started there would block them too."""
    before = signal.pthread_sigmask(signal.SIG_SETMASK, ())
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def create_log(info: TrialInfo) -> None:
    """Create the log of a run, as the runner does before it starts the workers.

    For tests of launchers, which start workers without a runner.

    Raises:
        StorageFullError: If there is no room for its first line.
    """
    open_log(info).close()
