"""Processes of this machine, and whether one of them is surely gone."""

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
    """Return an id that all processes have which can see each other."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return f"{boot} {os.readlink('/proc/self/ns/pid')}"


def describe_process(pid: int) -> dict[str, Any]:
    """Return the values by which another process of the machine finds a process again."""
    return {"pid": pid, "began": _began(pid), "machine": machine_id()}


def end_process(process: Mapping[str, Any]) -> bool:
    """End a process, with its group; return whether it is surely gone.

    Args:
        process: As `describe_process` told.
    """
    if process["machine"] != machine_id():
        return False
    deadline = time.monotonic() + _END_TIMEOUT_S
    # Process ids are used again; the time at which a process began tells them apart.
    while process["began"] is not None and _began(process["pid"]) == process["began"]:
        if time.monotonic() > deadline:
            return False
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process["pid"], signal.SIGKILL)
        time.sleep(0.02)
    return True


def _began(pid: int) -> str | None:
    """Return when a process began, None if it has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else fields[19]
