"""Tools for launchers that start the workers of one trial on several machines.

The launcher decides on which machine each rank runs, and carries a few values between the machines.
This module does the rest: it numbers the workers (`place_ranks`), computes their environment
variables (`rank_variables`), starts one of them on its machine (`start_rank`), runs the
services of plugins by which libraries such as Horovod find the other workers (`find_services`),
handles the failure of one of them (`Workers`), lets a thread end a wait of the runner (`Wake`), and
brings the trial's log to the runner from a
machine that does not share its folders (`LogSource` there, `LogCopy` here).
A service that can start any command on several machines is a `SupportsHosts`.
Tests that start workers without a runner create the log themselves (`create_log`).
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
from detcore.launch.local_launcher import Wake, find_services
from detcore.launch.log_relay import LogCopy, LogSource, log_header
from detcore.launch.output_lines import LineCutter
from detcore.launch.worker_processes import RemoteProcess, Workers
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
    "RemoteProcess",
    "Rendezvous",
    "RendezvousService",
    "RendezvousStore",
    "Sink",
    "SupportsHosts",
    "Wake",
    "Workers",
    "create_log",
    "drop_outer_job_variables",
    "find_interface",
    "find_services",
    "log_header",
    "make_rank_variables",
    "place_ranks",
    "rank_variables",
    "start_rank",
]


def create_log(info: TrialInfo) -> None:
    """Create the log of a run, as the runner does before it starts the workers.

    For tests of launchers, which start workers without a runner.

    Raises:
        StorageFullError: If there is no room for its first line.
    """
    open_log(info).close()
