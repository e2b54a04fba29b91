"""Tools for launchers that start the workers of one trial on several machines.

The launcher decides on which machine each rank runs, and carries a few values between the machines.
This module provides the other parts:

- `place_ranks` numbers the workers, and `rank_variables` computes their environment variables.
- `start_rank` starts a worker on its machine. `RemoteWorkerGroup` is the runner's view of
  the workers, and `Workers` handles failures.
- `find_services` returns the rendezvous services of plugins, through which libraries such as
  Horovod find the other workers. A `SupportsHosts` can start any command on several machines.
- `LogSource` and `LogCopy` copy the trial's log to the runner if the machines share no file system.
- `create_log` creates the log in tests that start workers without a runner.
"""

from __future__ import annotations

from detcore.contract.launch import (
    Line,
    RankPlace,
    Rendezvous,
    RendezvousService,
    RendezvousStore,
    Sink,
)
from detcore.contract.values import TrialInfo
from detcore.launch.host_worker import find_interface, rank_variables, start_rank
from detcore.launch.hosts import HostsJob, HostsRequest, SupportsHosts
from detcore.launch.job_variables import (
    LocalJob,
    drop_outer_job_variables,
    make_rank_variables,
    place_ranks,
)
from detcore.launch.local_launcher import find_services
from detcore.launch.log_relay import LogCopy, LogSource, read_log_header, read_save_durations
from detcore.launch.output_lines import LineCutter
from detcore.launch.worker_group import RemoteWorkerGroup
from detcore.launch.worker_processes import Workers
from detcore.log.writing import open_log

__all__ = [
    "HostsJob",
    "HostsRequest",
    "Line",
    "LineCutter",
    "LocalJob",
    "LogCopy",
    "LogSource",
    "RankPlace",
    "RemoteWorkerGroup",
    "Rendezvous",
    "RendezvousService",
    "RendezvousStore",
    "Sink",
    "SupportsHosts",
    "Workers",
    "create_log",
    "drop_outer_job_variables",
    "find_interface",
    "find_services",
    "make_rank_variables",
    "place_ranks",
    "rank_variables",
    "read_log_header",
    "read_save_durations",
    "start_rank",
]


def create_log(info: TrialInfo) -> None:
    """Create the log of a run, as the runner does before it starts the workers.

    For tests of launchers, which start workers without a runner.

    Raises:
        StorageFullError: If the disk is full.
    """
    open_log(info).close()
