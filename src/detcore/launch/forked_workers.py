"""The runner's side of a process that forks workers; see `detcore.launch.fork_server`."""

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
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from detcore.launch.fork_server import MAX_MESSAGE_BYTES
from detcore.launch.worker_processes import describe_exit

_logger = logging.getLogger("detcore.launch")

# The server only forks; this is for a machine that swaps.
_ANSWER_TIMEOUT_S = 30.0


class ForkServer:
    """A process that forks workers which have their framework imported.

    The first `start` starts it, and its imports take some seconds. Until then, and when it cannot
    fork safely or has exited, workers have to be started plainly. It exits with this process.

    Args:
        framework_names: Registered names of the frameworks to import.
        notice: Called with a message for the user if the server ends without `close`.
    """

    def __init__(self, framework_names: Sequence[str], notice: Callable[[str], None]) -> None:
        self._framework_names = framework_names
        self._notice = notice
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._link: socket.socket | None = None
        self._cwd: Path | None = None
        self._is_ready = False
        self._is_over = False

    @property
    def pid(self) -> int | None:
        """Process id; None before the first `start`."""
        return None if self._process is None else self._process.pid

    def start(
        self, environment: Mapping[str, str], *, cwd: Path, keep_open: Sequence[int]
    ) -> ForkedWorker | None:
        """Fork a worker; return None if that is not possible now.

        Args:
            environment: All environment variables of the worker.
            cwd: Its working directory, the same for all workers.
            keep_open: Descriptors that it inherits.
        """
        with self._lock:
            if self._is_over:
                return None
            try:
                if self._process is None:
                    self._start_server(environment, cwd)
                if cwd != self._cwd or not self._wait_until_ready():
                    return None
                return self._fork(environment, cwd, keep_open)
            except OSError as error:
                code = self._kill()
                end = error if isinstance(error, TimeoutError) else describe_exit(code)
                self._notice(
                    f"the process {self.pid} that forks trials {end}; "
                    "each trial imports its framework from now on"
                )
                return None

    def _start_server(self, environment: Mapping[str, str], cwd: Path) -> None:
        self._link, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        arguments = ["--fork-server", str(theirs.fileno()), *self._framework_names]
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "detcore.launch.worker", *arguments],
                cwd=cwd,
                env=environment,
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        self._cwd = cwd

    def _wait_until_ready(self) -> bool:
        """Return whether the server can fork, without waiting for its imports."""
        if self._is_ready:
            return True
        assert self._link is not None
        if not _poll(self._link.fileno(), timeout_s=0):
            return False
        unfit = self._receive()["unfit"]
        if unfit is not None:
            _logger.debug("trials are not forked: %s", unfit)
            self._kill()
            return False
        self._is_ready = True
        return True

    def _fork(
        self, environment: Mapping[str, str], cwd: Path, keep_open: Sequence[int]
    ) -> ForkedWorker | None:
        assert self._link is not None
        request = {
            "environment": dict(environment), "cwd": str(cwd), "descriptors": list(keep_open),
        }  # fmt: skip
        pipes = [os.pipe() for _ in range(3)]
        with contextlib.ExitStack() as on_failure:
            streams = [on_failure.enter_context(os.fdopen(end, "rb")) for end, _ in pipes]
            try:
                data = json.dumps(request).encode()
                socket.send_fds(self._link, [data], [*(end for _, end in pipes), *keep_open])
            finally:
                for _, end in pipes:
                    os.close(end)
            pid = self._receive()["pid"]
            if pid == 0:
                return None
            worker = ForkedWorker(pid, *streams)
            on_failure.pop_all()
            return worker

    def _receive(self) -> dict[str, Any]:
        assert self._link is not None
        if not _poll(self._link.fileno(), timeout_s=_ANSWER_TIMEOUT_S):
            raise TimeoutError(f"did not answer within {_ANSWER_TIMEOUT_S:.0f} s")
        data = self._link.recv(MAX_MESSAGE_BYTES)
        if not data:
            raise BrokenPipeError
        message: dict[str, Any] = json.loads(data)
        return message

    def _kill(self) -> int:
        """Kill the server; return its exit code."""
        self._is_over = True
        if self._process is None:
            return 0
        self._process.kill()
        return self._process.wait()

    def close(self) -> None:
        """Kill the server. Its workers are killed by whoever waits for them."""
        with self._lock:
            self._kill()
            if self._link is not None:
                self._link.close()


class ForkedWorker:
    """A forked worker, supervised like a `subprocess.Popen`.

    Attributes:
        pid: Its process id, and that of its group.
        returncode: Its exit code (negative: the signal that killed it), None until `wait` knows.
        stdout: Its standard output.
        stderr: Its standard error.
    """

    def __init__(
        self, pid: int, exit_code: IO[bytes], stdout: IO[bytes], stderr: IO[bytes]
    ) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self.stdout = stdout
        self.stderr = stderr
        self._exit_code = exit_code

    def wait(self) -> int:
        """Wait for its end; return its exit code.

        If the server has exited, the exit code cannot be collected, so the worker is killed.
        """
        if self.returncode is None:
            with self._exit_code:
                data = self._exit_code.read()
            if not data:
                self._kill()
            self.returncode = int(data) if data else -signal.SIGKILL
        return self.returncode

    def _kill(self) -> None:
        """Kill it, and wait until it has ended: only then may the trial start again."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            pidfd = os.pidfd_open(self.pid)
            os.killpg(self.pid, signal.SIGKILL)
            _poll(pidfd)
            os.close(pidfd)

    def send_signal(self, number: int) -> None:
        """Send it a signal, unless it has ended."""
        with contextlib.suppress(ProcessLookupError):
            if self.returncode is None:
                os.kill(self.pid, number)


def _poll(descriptor: int, *, timeout_s: float | None = None) -> bool:
    """Return whether a descriptor becomes readable before a timeout."""
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(None if timeout_s is None else timeout_s * 1000))
