"""A process that imports a framework once and forks the workers of a search's trials.

The process does not run the user's code. `serve` runs inside the process, and
`detcore.launch.forked_workers` is the runner's side. They exchange JSON objects over a socket that
preserves message boundaries:

- The server sends ``{"unfit": null | reason}`` after its imports.
- The runner sends ``{"environment": {name: value}, "cwd": path, "descriptors": [number]}`` together
  with the descriptors of the pipe for the exit code, of standard output and of standard error, and
  the descriptors with these numbers in the runner.
- The server answers ``{"pid": number}``, or 0 if it cannot fork. When the worker exits, the server
  writes its exit code, or the negative number of the signal that killed it, to the pipe.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import importlib
import json
import os
import random
import select
import signal
import socket
import sys
import threading
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from detcore.environment import (
    change_environment,
    child_environment,
    read_environment,
    read_prefixed,
)

if TYPE_CHECKING:
    from detcore.contract.values import Framework
    from detcore.plugins import PluginManager

CHANNEL_VARIABLE = "DETCORE_CHANNEL_FD"
MAX_MESSAGE_BYTES = 1 << 17
_MAX_DESCRIPTORS = 64
# NumPy's linear algebra reads these variables during its import, and Python at its start.
_IMPORT_VARIABLES = ("OMP_", "OPENBLAS_", "MKL_", "NPY_", "PYTHON")
# The modules that every worker imports, some of them late. For "module:name", accessing the
# attribute imports another module.
WORKER_MODULES = (
    "numpy.ma",
    "numpy.random",
    "statistics",
    "email.parser",
    "encodings.ascii",
    "detcore.log",
    "detcore.masking",
    "detcore.builtin",
    "detcore.checkpoint",
    "detcore.core",
    "detcore.data",
    "detcore.distributed",
    "detcore.metrics",
    "detcore.storage",
    "detcore.trial:import_trial_class",
    "detcore.trial:run_trial",
)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ForkedStart:
    """The state of the server that a forked worker inherits.

    Attributes:
        plugins: The plugins, loaded before the fork. Their problems are not reported yet.
        prefixes: Prefixes of the variables that the imported modules read.
        variables: Values of these variables during the imports.
    """

    plugins: PluginManager
    prefixes: tuple[str, ...]
    variables: Mapping[str, str]


def serve(link_fd: int, framework_names: Sequence[str]) -> ForkedStart:
    """Fork workers until the runner exits. Returns only in the forked workers.

    Args:
        link_fd: The server's end of the socket.
        framework_names: Registered names of the frameworks to import.
    """
    link = socket.socket(fileno=link_fd)
    from detcore.plugins import PluginManager

    plugins = PluginManager(read_environment())
    frameworks = [plugins.frameworks()[name] for name in framework_names]
    plugins.storage_types()
    prefixes = _IMPORT_VARIABLES + tuple(
        name for framework in frameworks for name in framework.import_variables
    )
    start = ForkedStart(plugins=plugins, prefixes=prefixes, variables=read_prefixed(prefixes))
    reason = _import_modules([*WORKER_MODULES, *_framework_modules(frameworks)])
    _end_idle_threads()
    gc.collect()
    gc.freeze()  # Otherwise the garbage collector of each worker would copy all pages it visits.
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        _send_message(link, unfit=reason or _find_threads())
        _Server(link).run()
        return start
    # The exit handlers of the imported modules run only in the workers.
    os._exit(0)


def _framework_modules(frameworks: Sequence[Framework]) -> Iterator[str]:
    for framework in frameworks:
        yield from framework.requires
        places = (framework.trial_class, framework.context_class, framework.controller)
        yield from (place for place in (*places, framework.prepare_worker) if place is not None)


def _import_modules(names: Sequence[str]) -> str | None:
    """Import modules, and return the reason if a module cannot be imported, or None."""
    for name in names:
        module, _, attribute = name.partition(":")
        try:
            imported = importlib.import_module(module)
            if attribute:
                getattr(imported, attribute)
        except Exception as error:  # noqa: BLE001  (a new worker reports the error)
            return f"{name} cannot be imported: {type(error).__name__}: {error}"
    return None


def _end_idle_threads() -> None:
    """Fork once, which makes libraries such as OpenBLAS end their idle threads."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)


def _find_threads() -> str | None:
    """Return the reason why this process cannot be forked safely, or None."""
    num_threads = len(list(Path("/proc/self/task").iterdir()))
    if num_threads > 1 or threading.active_count() > 1:
        return f"it has {num_threads} threads"
    return None


def _send_message(link: socket.socket, **fields: object) -> None:
    link.send(json.dumps(fields).encode())


class _Server:
    """Forks workers and reports their exit codes.

    Args:
        link: The server's end of the socket.
    """

    def __init__(self, link: socket.socket) -> None:
        self._link = link
        # The process id and the pipe for the exit code, by process descriptor.
        self._workers: dict[int, tuple[int, int]] = {}
        self._poll = select.poll()
        self._poll.register(link, select.POLLIN)

    def run(self) -> None:
        """Fork workers. Returns only in the forked workers.

        Raises:
            BrokenPipeError: If the runner has exited.
        """
        while True:
            for descriptor, _ in self._poll.poll():
                if descriptor in self._workers:
                    self._report_end(descriptor)
                elif self._fork_worker():
                    return

    def _report_end(self, descriptor: int) -> None:
        pid, status_fd = self._workers.pop(descriptor)
        self._poll.unregister(descriptor)
        # Until the status is collected, no other process group can have this id.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, signal.SIGKILL)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        with contextlib.suppress(BrokenPipeError):
            os.write(status_fd, str(code).encode())
        os.close(descriptor)
        os.close(status_fd)

    def _fork_worker(self) -> bool:
        """Fork the worker that the runner requests; return whether this process is the worker."""
        data, descriptors, flags, _ = socket.recv_fds(
            self._link, MAX_MESSAGE_BYTES, _MAX_DESCRIPTORS
        )
        if not data or flags & (socket.MSG_CTRUNC | socket.MSG_TRUNC):
            raise BrokenPipeError
        is_ready, ready_fd = os.pipe()
        try:
            pid = os.fork()
        except OSError:
            pid = None
        if pid == 0:
            os.setsid()
            self._close_inherited()
            for descriptor in (is_ready, ready_fd):
                os.close(descriptor)
            _become_worker(json.loads(data), descriptors)
            return True
        os.close(ready_fd)
        os.read(is_ready, 1)  # Returns when the worker leads a session.
        os.close(is_ready)
        if pid is not None:
            descriptor = os.pidfd_open(pid)
            self._workers[descriptor] = pid, os.dup(descriptors[0])
            self._poll.register(descriptor, select.POLLIN)
        for descriptor in descriptors:
            os.close(descriptor)
        _send_message(self._link, pid=pid or 0)
        return False

    def _close_inherited(self) -> None:
        """Close the server's descriptors, so that the other ends notice its exit."""
        self._link.close()
        for descriptor, (_, status_fd) in self._workers.items():
            os.close(descriptor)
            os.close(status_fd)


def _become_worker(request: Mapping[str, Any], descriptors: Sequence[int]) -> None:
    """Make this process equivalent to a newly started worker."""
    status_fd, stdout, stderr, *inherited_fds = descriptors
    os.dup2(stdout, 1)
    os.dup2(stderr, 2)
    for descriptor in (status_fd, stdout, stderr):
        os.close(descriptor)
    for descriptor in inherited_fds:
        os.set_inheritable(descriptor, True)
    fd_numbers = dict(zip(request["descriptors"], inherited_fds, strict=True))
    environment = dict(request["environment"])
    environment[CHANNEL_VARIABLE] = str(fd_numbers[int(environment[CHANNEL_VARIABLE])])
    change_environment(environment, without=child_environment({}))
    os.chdir(request["cwd"])
    del sys.argv[1:]
    random.seed()
    sys.modules["numpy"].random.seed()
