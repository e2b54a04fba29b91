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
    from detcore.launch._job import framework_variables, num_cores
    from detcore.launch._jobs import run_on_hosts, run_workers
    from detcore.launch._local import LocalLauncher
    from detcore.launch._workers import describe_exit

__all__ = [
    "Launcher",
    "LocalLauncher",
    "OutputSink",
    "SupportsCheck",
    "WorkerEvent",
    "WorkerGroup",
    "describe_exit",
    "framework_variables",
    "num_cores",
    "run_on_hosts",
    "run_workers",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "_job": "framework_variables num_cores",
        "_local": "LocalLauncher",
        "_workers": "describe_exit",
        "_jobs": "run_on_hosts run_workers",
        "detcore.contract.launch": "Launcher OutputSink SupportsCheck WorkerEvent WorkerGroup",
    },
)
