"""Launchers, which start the worker processes of a trial, and the program that runs inside them.

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
    from detcore.launch._command import describe_exit, run_on_hosts, run_workers
    from detcore.launch._early import EarlyWorker, early_worker
    from detcore.launch._job import framework_variables
    from detcore.launch._local import LocalLauncher
    from detcore.launch._places import num_cores
    from detcore.launch._user_imports import find_preload

__all__ = [
    "EarlyWorker",
    "Launcher",
    "LocalLauncher",
    "OutputSink",
    "SupportsCheck",
    "WorkerEvent",
    "WorkerGroup",
    "describe_exit",
    "early_worker",
    "find_preload",
    "framework_variables",
    "num_cores",
    "run_on_hosts",
    "run_workers",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "_command": "describe_exit run_on_hosts run_workers",
        "_early": "EarlyWorker early_worker",
        "_job": "framework_variables",
        "_local": "LocalLauncher",
        "_places": "num_cores",
        "_user_imports": "find_preload",
        "detcore.contract.launch": "Launcher OutputSink SupportsCheck WorkerEvent WorkerGroup",
    },
)
