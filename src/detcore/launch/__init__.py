"""Launchers, which start the worker processes of a trial, and the program that runs inside them.

Names are imported on first use, because a worker needs only a few of them.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from detcore.launch._command import LauncherName, describe_exit, run_on_hosts, run_workers
    from detcore.launch._group import (
        Launcher,
        OutputSink,
        SupportsCheck,
        WorkerEvent,
        WorkerGroup,
    )
    from detcore.launch._hosts import Host, parse_hosts
    from detcore.launch._job import num_cores
    from detcore.launch._local import LocalLauncher
    from detcore.launch._printer import Printer
    from detcore.launch._user_imports import UserImports, read_imports

__all__ = [
    "Host",
    "Launcher",
    "LauncherName",
    "LocalLauncher",
    "OutputSink",
    "Printer",
    "SupportsCheck",
    "UserImports",
    "WorkerEvent",
    "WorkerGroup",
    "describe_exit",
    "num_cores",
    "parse_hosts",
    "read_imports",
    "run_on_hosts",
    "run_workers",
]

_HOMES = {
    "Host": "_hosts",
    "Launcher": "_group",
    "LauncherName": "_command",
    "LocalLauncher": "_local",
    "OutputSink": "_group",
    "Printer": "_printer",
    "SupportsCheck": "_group",
    "UserImports": "_user_imports",
    "WorkerEvent": "_group",
    "WorkerGroup": "_group",
    "describe_exit": "_command",
    "num_cores": "_job",
    "parse_hosts": "_hosts",
    "read_imports": "_user_imports",
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
