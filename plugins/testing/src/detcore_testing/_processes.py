"""Processes that a test started: found by a variable that all their descendants inherit."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterable
from pathlib import Path


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
            if wanted in (folder / "environ").read_bytes().split(b"\0") and is_alive(folder):
                words = (folder / "cmdline").read_bytes().split(b"\0")
                found[int(folder.name)] = b" ".join(words).decode("utf-8", "replace").strip()
    return found


def is_alive(folder: Path) -> bool:
    """Whether the process of a folder in ``/proc`` is there and no zombie."""
    state = (folder / "stat").read_text().rpartition(")")[2].split()[0]
    return state not in ("Z", "X")


def wait_until_ended(name: str, value: str, timeout_s: float) -> dict[int, str]:
    """Wait for the processes with a variable to end; return those that are still there."""
    deadline = time.monotonic() + timeout_s
    while (left := marked_processes(name, value)) and time.monotonic() < deadline:
        time.sleep(0.02)
    return left


def kill(processes: Iterable[int]) -> None:
    """Kill processes, as far as they are still there."""
    for pid in processes:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
