"""Inspect processes and descriptors from outside, regardless of their parent."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterable
from pathlib import Path

import pytest


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


def wait_until_gone(pids: Iterable[int], timeout_s: float) -> list[int]:
    """Return those processes that are still there after the time, in seconds."""
    deadline = time.monotonic() + timeout_s
    while True:
        left = [pid for pid in pids if is_running(pid)]
        if not left or time.monotonic() > deadline:
            return left
        time.sleep(0.01)


def zombies() -> list[int]:
    """Return children of this process that have ended and were not waited for (Linux)."""
    found = []
    for task in Path("/proc/self/task").glob("*/children"):
        with contextlib.suppress(OSError):
            found += [int(pid) for pid in task.read_text().split() if _state(int(pid)) == "Z"]
    return found


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""
