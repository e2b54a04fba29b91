"""Launchers, which start the worker processes of a trial, and the program that runs inside them.

Names are imported on first use, because a worker needs only a few of them.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from detcore.launch._command import describe_exit, run_on_hosts, run_workers
    from detcore.launch._early import EarlyWorker, early_worker
    from detcore.launch._group import (
        Launcher,
        OutputSink,
        SupportsCheck,
        WorkerEvent,
        WorkerGroup,
    )
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

_HOMES = {
    "EarlyWorker": "_early",
    "Launcher": "_group",
    "LocalLauncher": "_local",
    "OutputSink": "_group",
    "SupportsCheck": "_group",
    "WorkerEvent": "_group",
    "WorkerGroup": "_group",
    "describe_exit": "_command",
    "early_worker": "_early",
    "find_preload": "_user_imports",
    "framework_variables": "_job",
    "num_cores": "_places",
    "run_on_hosts": "_command",
    "run_workers": "_command",
}


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'detcore.launch' has no attribute {name!r}")
    return getattr(importlib.import_module(f"detcore.launch.{home}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
