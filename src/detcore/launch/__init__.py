"""Launchers, which start the worker processes of a trial, and the program of the workers.

Names are imported on first use, because a worker needs only a few of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from detcore.lazy import lazy_names

if TYPE_CHECKING:
    from detcore.contract.launch import (
        Launcher,
        OutputSink,
        SupportsCheck,
        WorkerEvent,
        WorkerGroup,
    )
    from detcore.launch.attach import SupportsAttach
    from detcore.launch.command_job import run_on_hosts, run_workers
    from detcore.launch.job_variables import count_cores, framework_variables
    from detcore.launch.local_launcher import LocalLauncher
    from detcore.launch.worker_processes import describe_exit

__all__ = [
    "Launcher",
    "LocalLauncher",
    "OutputSink",
    "SupportsAttach",
    "SupportsCheck",
    "WorkerEvent",
    "WorkerGroup",
    "count_cores",
    "describe_exit",
    "framework_variables",
    "run_on_hosts",
    "run_workers",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "attach": "SupportsAttach",
        "job_variables": "framework_variables count_cores",
        "local_launcher": "LocalLauncher",
        "worker_processes": "describe_exit",
        "command_job": "run_on_hosts run_workers",
        "detcore.contract.launch": "Launcher OutputSink SupportsCheck WorkerEvent WorkerGroup",
    },
)
