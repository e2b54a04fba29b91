"""Test processes: fork them, find them by an inherited variable, and wait for their exit."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterable, Sized
from pathlib import Path
from typing import TypeVar

import pytest

_Items = TypeVar("_Items", bound=Sized)
_POLL_INTERVAL_S = 0.01
_FORK_TIMEOUT_S = 60.0
_EXIT_FAILED = 3


def num_descriptors() -> int:
    """Return the number of open descriptors, or skip the test if the system does not list them."""
    for folder in ("/proc/self/fd", "/dev/fd"):
        with contextlib.suppress(OSError):
            return len(os.listdir(folder))
    pytest.skip("this system does not list the open descriptors of a process")


def is_running(pid: int) -> bool:
    """Whether a process is running. Zombies are not running.

    0 is not running either. It is the id of a worker that has not started, but as a signal target
    it means the process group.
    """
    if pid <= 0:
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return _read_state(pid) not in ("Z", "X")


def list_zombies() -> list[int]:
    """Return the zombie children of this process (Linux)."""
    pids = []
    for task in Path("/proc/self/task").glob("*/children"):
        with contextlib.suppress(OSError):
            pids += [int(pid) for pid in task.read_text().split() if _read_state(int(pid)) == "Z"]
    return pids


def find_marked_processes(name: str, value: str) -> dict[int, str]:
    """Return the ids and command lines of running processes with an environment variable.

    The result includes daemons, orphans and forks, because a process cannot remove a variable from
    its initial environment. Linux only (``/proc``).

    Args:
        name: Name of the variable.
        value: Value of the variable.
    """
    entry = f"{name}={value}".encode()
    commands = {}
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit() or int(folder.name) == os.getpid():
            continue
        # Processes may exit meanwhile, and processes of other users are not readable.
        with contextlib.suppress(OSError):
            variables = (folder / "environ").read_bytes().split(b"\0")
            if entry in variables and is_running(int(folder.name)):
                words = (folder / "cmdline").read_bytes().split(b"\0")
                commands[int(folder.name)] = b" ".join(words).decode("utf-8", "replace").strip()
    return commands


def wait_until_empty(list_items: Callable[[], _Items], timeout_s: float) -> _Items:
    """Wait until a function returns an empty result, and return its last result."""
    deadline = time.monotonic() + timeout_s
    while (items := list_items()) and time.monotonic() < deadline:
        time.sleep(_POLL_INTERVAL_S)
    return items


def wait_until_exited(pids: Iterable[int], timeout_s: float) -> list[int]:
    """Wait for processes to exit, and return the processes still running after the timeout."""
    return wait_until_empty(lambda: [pid for pid in pids if is_running(pid)], timeout_s)


def kill_processes(pids: Iterable[int]) -> None:
    """Kill processes that are still running."""
    for pid in pids:
        if pid > 0:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)


def fork_call(function: Callable[[], int | None]) -> int:
    """Start a function in a forked child, and return the child's process id.

    The child exits with the function's return value (0 for None), or with 3 on an exception.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    with warnings.catch_warnings():
        # Python warns if the process has threads. The child runs only the function.
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid:
        return pid
    code = _EXIT_FAILED
    try:
        code = function() or 0
    except BaseException:  # noqa: BLE001  (printed before the process exits)
        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(code)


def wait_for_child(pid: int, timeout_s: float = _FORK_TIMEOUT_S) -> int:
    """Wait for a forked child, and return its exit code. Negative codes are signals.

    Raises:
        TimeoutError: If the timeout expires. The child is killed.
    """
    survivors = wait_until_exited([pid], timeout_s)
    kill_processes(survivors)
    _, status = os.waitpid(pid, 0)
    if survivors:
        raise TimeoutError(f"the forked process {pid} did not exit within {timeout_s:g} s")
    return os.waitstatus_to_exitcode(status)


def _read_state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""
