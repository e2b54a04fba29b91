"""Processes of a test: fork them, find them by an inherited variable, and wait for their end."""

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

_Left = TypeVar("_Left", bound=Sized)
_POLL_INTERVAL_S = 0.01
_FORK_TIMEOUT_S = 60.0
_EXIT_FAILED = 3


def num_descriptors() -> int:
    """Return how many descriptors this process has open; skips a test where nothing tells."""
    for folder in ("/proc/self/fd", "/dev/fd"):
        with contextlib.suppress(OSError):
            return len(os.listdir(folder))
    pytest.skip("this system does not list the open descriptors of a process")


def is_running(pid: int) -> bool:
    """Whether a process is there; one that has ended and was not waited for is not.

    Neither is 0, the id of a worker that has not started, which signals take for this group.
    """
    if pid <= 0:
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return _state(pid) not in ("Z", "X")


def zombies() -> list[int]:
    """Return children of this process that have ended and were not waited for (Linux)."""
    found = []
    for task in Path("/proc/self/task").glob("*/children"):
        with contextlib.suppress(OSError):
            found += [int(pid) for pid in task.read_text().split() if _state(int(pid)) == "Z"]
    return found


def marked_processes(name: str, value: str) -> dict[int, str]:
    """Return the living processes with a variable, by id with their command lines.

    Daemons and orphans are included: a process cannot drop the variables that it was started with.
    A fork that has not started another program is found by its parent's. Linux only (``/proc``).

    Args:
        name: The variable.
        value: Its value.
    """
    wanted = f"{name}={value}".encode()
    found = {}
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit() or int(folder.name) == os.getpid():
            continue
        # Processes end while they are looked at, and those of others may not be read.
        with contextlib.suppress(OSError):
            variables = (folder / "environ").read_bytes().split(b"\0")
            if wanted in variables and is_running(int(folder.name)):
                words = (folder / "cmdline").read_bytes().split(b"\0")
                found[int(folder.name)] = b" ".join(words).decode("utf-8", "replace").strip()
    return found


def wait_until_none(list_left: Callable[[], _Left], timeout_s: float) -> _Left:
    """Wait until a function returns nothing; return its last result."""
    deadline = time.monotonic() + timeout_s
    while (left := list_left()) and time.monotonic() < deadline:
        time.sleep(_POLL_INTERVAL_S)
    return left


def wait_until_gone(pids: Iterable[int], timeout_s: float) -> list[int]:
    """Return those processes that are still there after the time, in seconds."""
    return wait_until_none(lambda: [pid for pid in pids if is_running(pid)], timeout_s)


def kill(pids: Iterable[int]) -> None:
    """Kill processes, as far as they are still there."""
    for pid in pids:
        if pid > 0:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)


def forked(function: Callable[[], int | None]) -> int:
    """Start a function in a forked child; return its process id.

    The child ends with the code that the function returns (None: 0), or with 3 if it raises.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    with warnings.catch_warnings():
        # Python warns if the process has threads; the child runs nothing but the function.
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid:
        return pid
    code = _EXIT_FAILED
    try:
        code = function() or 0
    except BaseException:  # noqa: BLE001  (the end of the process: printed, never dropped)
        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(code)


def wait_for_child(pid: int, timeout_s: float = _FORK_TIMEOUT_S) -> int:
    """Wait for a forked child; return its exit code, negative where a signal killed it.

    Raises:
        TimeoutError: If it did not end in time; it is killed.
    """
    left = wait_until_gone([pid], timeout_s)
    kill(left)
    _, status = os.waitpid(pid, 0)
    if left:
        raise TimeoutError(f"the forked process {pid} did not end within {timeout_s:g} s")
    return os.waitstatus_to_exitcode(status)


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""
