"""Starting the worker processes of a trial, and what runs inside them."""

from detcore.launch._command import LauncherName, describe_exit, run_on_hosts, run_workers
from detcore.launch._hosts import Host, parse_hosts
from detcore.launch._job import num_cores
from detcore.launch._local import LocalLauncher, WorkerEvent, WorkerGroup
from detcore.launch._printer import Printer

__all__ = [
    "Host",
    "LauncherName",
    "LocalLauncher",
    "Printer",
    "WorkerEvent",
    "WorkerGroup",
    "describe_exit",
    "num_cores",
    "parse_hosts",
    "run_on_hosts",
    "run_workers",
]
