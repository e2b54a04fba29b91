"""Starting the worker processes of a trial, and what runs inside them."""

from detcore.launch._local import LocalLauncher, WorkerEvent, WorkerProcess

__all__ = ["LocalLauncher", "WorkerEvent", "WorkerProcess"]
