"""The runner's side of a process that forks workers; `detcore.launch._warm` runs inside it."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from detcore.contract.launch import Line
from detcore.launch._lines import LineCutter, Pump
from detcore.launch._warm import (
    MAX_MESSAGE_BYTES,
    own_variables,
    send_message,
    shared_variables,
)
from detcore.launch._workers import describe_exit, start_process

__all__ = ["WORKER_MODULES", "WarmParent", "WarmProcess", "is_possible"]

# The modules that every worker imports, and those that they import later.
WORKER_MODULES = (
    "numpy.ma",
    "numpy.random",
    "statistics",
    "email.parser",
    "encodings.ascii",
    "detcore._log",
    "detcore._secrets",
    "detcore.builtin",
    "detcore.checkpoint",
    "detcore.core",
    "detcore.data",
    "detcore.distributed",
    "detcore.hooks:PluginManager",
    "detcore.metrics",
    "detcore.storage",
    "detcore.trial:import_trial_class",
    "detcore.trial:run_trial",
)

_logger = logging.getLogger("detcore.launch")

# It only forks; this is for a machine that swaps.
_ANSWER_TIMEOUT_S = 30.0


def is_possible() -> bool:
    """Whether this system can tell how a process ended that another one started (Linux 5.3)."""
    if sys.platform != "linux" or not hasattr(os, "pidfd_open"):
        return False
    try:
        os.close(os.pidfd_open(os.getpid()))
    except OSError:  # an older kernel, or a container that forbids it
        return False
    return True


class WarmParent:
    """A process that imports modules once, and forks workers that have them.

    It is started by the first `start` and needs some seconds; until then, when it cannot fork
    safely, and when it is gone, workers have to be started in another way. It ends with this
    process, however that ends, and with it the workers that it forked.

    Args:
        modules: Modules to import in addition to those of every worker: ``"module"``, or
            ``"module:attribute"`` if the access to the attribute imports.

    Attributes:
        lost: Reason for its loss, as half a sentence; None unless it was lost.
    """

    def __init__(self, modules: Sequence[str]) -> None:
        self._modules = (*WORKER_MODULES, *modules)
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._environment: dict[str, str] = {}
        self._cwd: Path | None = None
        self._is_ready = False
        self._link: socket.socket | None = None
        self._pump: Pump | None = None
        self._is_over = False
        self.lost: str | None = None

    @property
    def pid(self) -> int | None:
        """Its process id; None before the first `start`."""
        return None if self._process is None else self._process.pid

    def start(
        self, environment: Mapping[str, str], *, cwd: Path, keep_open: Sequence[int]
    ) -> WarmProcess | None:
        """Fork a worker; None if that is not possible now.

        Args:
            environment: All of the worker's variables.
            cwd: The folder that it runs in.
            keep_open: Descriptors that it inherits.
        """
        with self._lock:
            if self._is_over:
                return None
            try:
                if self._process is None:
                    self._begin(environment, cwd)
                if not self._may_fork(environment, cwd):
                    return None
                return self._fork(environment, cwd, keep_open)
            except OSError as error:
                self._lose(error)
                return None

    def _begin(self, environment: Mapping[str, str], cwd: Path) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._link, self._cwd = ours, cwd
        self._environment = shared_variables(environment)
        with theirs:
            self._process = start_process(
                [sys.executable, "-m", "detcore.launch.worker", str(theirs.fileno())],
                self._environment,
                [theirs.fileno()],
                cwd=cwd,
                stderr=subprocess.STDOUT,
            )
        assert self._process.stdout is not None
        self._pump = Pump(self._process.stdout, 0, "stdout", _log_line, LineCutter())
        self._send({"import": list(self._modules)})

    def _may_fork(self, environment: Mapping[str, str], cwd: Path) -> bool:
        if not self._is_ready:
            assert self._link is not None
            if not _wait_for(self._link.fileno(), timeout_s=0.0):
                return False
            unfit = self._receive()["unfit"]
            if unfit is not None:
                _logger.debug("trials start cold: the process to fork is unfit: %s", unfit)
                self._end()
                return False
            self._is_ready = True
        return shared_variables(environment) == self._environment and cwd == self._cwd

    def _fork(
        self, environment: Mapping[str, str], cwd: Path, keep_open: Sequence[int]
    ) -> WarmProcess | None:
        assert self._process is not None
        message = {
            **own_variables(environment),
            "descriptors": list(keep_open),
            "cwd": str(cwd),
        }
        with contextlib.ExitStack() as always, contextlib.ExitStack() as on_failure:
            streams = []
            writing = []
            for _ in range(2):
                read_fd, write_fd = os.pipe()
                streams.append(on_failure.enter_context(os.fdopen(read_fd, "rb")))
                always.callback(os.close, write_fd)
                writing.append(write_fd)
            self._send(message, (*writing, *keep_open))
            answer = self._receive()
            if "error" in answer:
                _logger.debug("a trial starts cold: %s", answer["error"])
                return None
            process = WarmProcess(self, answer["pid"], self._process.pid, streams[0], streams[1])
            on_failure.callback(process.close)
            self._send({"go": True})
            on_failure.pop_all()
            return process

    def reap(self, pid: int) -> int | None:
        """Return the exit code of a worker that has ended; None if that cannot be known any more.

        Args:
            pid: Its process id.
        """
        with self._lock:
            if self._is_over:
                return None
            try:
                self._send({"reap": pid})
                return int(self._receive()["code"])
            except OSError as error:
                self._lose(error)
                return None

    def _send(self, message: Mapping[str, object], descriptors: Sequence[int] = ()) -> None:
        assert self._link is not None
        send_message(self._link, message, descriptors)

    def _receive(self) -> dict[str, Any]:
        assert self._link is not None
        if not _wait_for(self._link.fileno(), timeout_s=_ANSWER_TIMEOUT_S):
            raise TimeoutError(f"it did not answer within {_ANSWER_TIMEOUT_S:.0f} s")
        data = self._link.recv(MAX_MESSAGE_BYTES)
        if not data:
            raise BrokenPipeError("it is gone")
        message: dict[str, Any] = json.loads(data)
        return message

    def _lose(self, error: OSError) -> None:
        code = self._end()
        what = error if isinstance(error, TimeoutError) else describe_exit(code)
        self.lost = f"the process {self.pid} that starts trials quickly {what}"

    def _end(self) -> int:
        """End it at once; a forked worker that has not received ``go`` ends too."""
        self._is_over = True
        if self._process is None:
            return 0
        self._process.kill()
        return self._process.wait()

    def close(self) -> None:
        """End it, and the workers that it forked."""
        with self._lock:
            self._end()
            if self._pump is not None:
                self._pump.join()
            if self._link is not None:
                self._link.close()


class WarmProcess:
    """A worker that a `WarmParent` forked, supervised like a `subprocess.Popen`.

    Attributes:
        pid: Its process id, and that of its group.
        returncode: Its exit code (negative: the signal that killed it), None until `wait` knows.
        stdout: Its standard output.
        stderr: Its standard error.
    """

    def __init__(
        self, parent: WarmParent, pid: int, parent_pid: int, stdout: IO[bytes], stderr: IO[bytes]
    ) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self.stdout = stdout
        self.stderr = stderr
        self._parent = parent
        # The numbers are still theirs: the status of neither process has been collected.
        self._pidfd = os.pidfd_open(pid)
        self._parent_pidfd = os.pidfd_open(parent_pid)
        self._lock = threading.Lock()

    def wait(self) -> int:
        """Wait for its end; return its exit code.

        If its parent is gone, its exit code cannot be collected, so it is killed.
        """
        if self.returncode is not None:
            return self.returncode
        if self._pidfd in _wait_for(self._pidfd, self._parent_pidfd):
            code = self._parent.reap(self.pid)
        else:
            self._kill_group()
            code = None
        with self._lock:
            self.returncode = -signal.SIGKILL if code is None else code
            self.close()
        return self.returncode

    def close(self) -> None:
        """Close the descriptors that watch it."""
        os.close(self._pidfd)
        os.close(self._parent_pidfd)

    def _kill_group(self) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        # The trial may be started again only when nothing of it runs any more.
        _wait_for(self._pidfd)

    def send_signal(self, number: int) -> None:
        """Send it a signal, unless it has ended."""
        with self._lock, contextlib.suppress(ProcessLookupError):
            if self.returncode is None:
                signal.pidfd_send_signal(self._pidfd, number)


def _wait_for(*descriptors: int, timeout_s: float | None = None) -> list[int]:
    """Return those that are readable, as soon as one is."""
    poll = select.poll()
    for descriptor in descriptors:
        poll.register(descriptor, select.POLLIN)
    timeout_ms = None if timeout_s is None else timeout_s * 1000
    return [descriptor for descriptor, _ in poll.poll(timeout_ms)]


def _log_line(_rank: int, _stream: str, line: Line) -> None:
    if line.is_final:
        _logger.debug("warm process: %s", line.text.decode("utf-8", "replace"))
