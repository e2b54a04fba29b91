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

# Forking is quick, but the machine may be swapping.
_ANSWER_TIMEOUT_S = 30.0


class ForkServer:
    """A process that forks workers with an imported framework.

    The first `start` starts the process, and its imports take some seconds. Until then, and when it
    cannot fork safely or has exited, the caller must start new workers. The process exits with this
    process.

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
        """Fork a worker, or return None if the server cannot fork now.

        Args:
            environment: All environment variables of the worker.
            cwd: Working directory of the worker, the same for all workers.
            keep_open: Descriptors that the worker inherits.
        """
        with self._lock:
            if self._is_over:
                return None
            try:
                if self._process is None:
                    self._start_server(environment, cwd)
                if cwd != self._cwd or not self._wait_until_ready():
                    return None
                return self._fork_worker(environment, cwd, keep_open)
            except OSError as error:
                code = self._kill_server()
                end = error if isinstance(error, TimeoutError) else describe_exit(code)
                self._notice(
                    f"the process {self.pid} that forks trials {end}; "
                    "from now on each trial imports its framework"
                )
                return None

    def _start_server(self, environment: Mapping[str, str], cwd: Path) -> None:
        self._link, server_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        arguments = ["--fork-server", str(server_end.fileno()), *self._framework_names]
        with server_end:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "detcore.launch.worker", *arguments],
                cwd=cwd,
                env=environment,
                pass_fds=[server_end.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        self._cwd = cwd

    def _wait_until_ready(self) -> bool:
        """Return whether the server can fork now, without waiting for its imports."""
        if self._is_ready:
            return True
        assert self._link is not None
        if not _wait_readable(self._link.fileno(), timeout_s=0):
            return False
        unfit = self._receive_message()["unfit"]
        if unfit is not None:
            _logger.debug("trials are not forked: %s", unfit)
            self._kill_server()
            return False
        self._is_ready = True
        return True

    def _fork_worker(
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
            pid = self._receive_message()["pid"]
            if pid == 0:
                return None
            worker = ForkedWorker(pid, *streams)
            on_failure.pop_all()
            return worker

    def _receive_message(self) -> dict[str, Any]:
        assert self._link is not None
        if not _wait_readable(self._link.fileno(), timeout_s=_ANSWER_TIMEOUT_S):
            raise TimeoutError(f"did not answer within {_ANSWER_TIMEOUT_S:.0f} s")
        data = self._link.recv(MAX_MESSAGE_BYTES)
        if not data:
            raise BrokenPipeError
        message: dict[str, Any] = json.loads(data)
        return message

    def _kill_server(self) -> int:
        """Kill the server; return its exit code."""
        self._is_over = True
        if self._process is None:
            return 0
        self._process.kill()
        return self._process.wait()

    def close(self) -> None:
        """Kill the server. `ForkedWorker.wait` then kills its workers."""
        with self._lock:
            self._kill_server()
            if self._link is not None:
                self._link.close()


class ForkedWorker:
    """A forked worker, supervised like a `subprocess.Popen`.

    Attributes:
        pid: Process id, which is also the id of the process group.
        returncode: Exit code (negative: the signal that killed the worker); None before `wait`.
        stdout: Standard output of the worker.
        stderr: Standard error of the worker.
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
        """Wait for the exit, and return the exit code.

        If the server has exited, the exit code cannot be collected, so the worker is killed.
        """
        if self.returncode is None:
            with self._exit_code:
                data = self._exit_code.read()
            if not data:
                self._kill_worker()
            self.returncode = int(data) if data else -signal.SIGKILL
        return self.returncode

    def _kill_worker(self) -> None:
        """Kill the worker and wait for its exit, because only then may the trial restart."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            pidfd = os.pidfd_open(self.pid)
            os.killpg(self.pid, signal.SIGKILL)
            _wait_readable(pidfd)
            os.close(pidfd)

    def send_signal(self, number: int) -> None:
        """Send a signal to the worker, unless it has exited."""
        with contextlib.suppress(ProcessLookupError):
            if self.returncode is None:
                os.kill(self.pid, number)


def _wait_readable(descriptor: int, *, timeout_s: float | None = None) -> bool:
    """Return whether a descriptor becomes readable before a timeout."""
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(None if timeout_s is None else timeout_s * 1000))
