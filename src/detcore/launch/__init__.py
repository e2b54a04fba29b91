"""Starting the worker processes of a trial, and what runs inside them."""

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
