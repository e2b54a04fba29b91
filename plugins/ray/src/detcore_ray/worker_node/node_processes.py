"""Identify processes of this machine, and kill them reliably."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_END_TIMEOUT_S = 5.0


def machine_id() -> str:
    """Return an id that is equal for all processes that can see each other."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return f"{boot} {os.readlink('/proc/self/ns/pid')}"


def describe_process(pid: int) -> dict[str, Any]:
    """Return values that identify a process for other processes of the machine."""
    return {"pid": pid, "began": _read_start_time(pid), "machine": machine_id()}


def end_process(process: Mapping[str, Any]) -> bool:
    """Kill a process with its group; return whether it has certainly exited.

    Args:
        process: A result of `describe_process`.
    """
    if process["machine"] != machine_id():
        return False
    deadline = time.monotonic() + _END_TIMEOUT_S
    # Process ids are reused. The start time distinguishes processes.
    while process["began"] is not None and _read_start_time(process["pid"]) == process["began"]:
        if time.monotonic() > deadline:
            return False
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process["pid"], signal.SIGKILL)
        time.sleep(0.02)
    return True


def _read_start_time(pid: int) -> str | None:
    """Return the start time of a process, or None if it has exited."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else fields[19]
