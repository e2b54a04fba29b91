"""Start and observe processes."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing_extensions import Self


class Starter:
    """Starts processes, and kills remaining processes at the end."""

    def __init__(self) -> None:
        self.started: list[subprocess.Popen[str]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        for process in self.started:
            with process:  # also closes the pipes
                if process.poll() is None:
                    process.kill()
                    process.communicate()  # waits until its workers have exited


def run_python(code: str) -> str:
    """Run code in a new interpreter, and return its output."""
    command = [sys.executable, "-c", code]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def is_running(pid: int) -> bool:
    """Whether a process is running and is not a zombie."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in ("Z", "X")


def catches(pid: int, number: int) -> bool:
    """Whether a process has installed a handler for a signal."""
    return _has(pid, "SigCgt:", number)


def is_pending(pid: int, number: int) -> bool:
    """Whether a signal is pending for a process."""
    return _has(pid, "ShdPnd:", number)


def _has(pid: int, field: str, number: int) -> bool:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(field):
            return bool(int(line.split()[1], 16) >> (number - 1) & 1)
    raise AssertionError(f"Linux tells {field} of every process")


def wait_until(condition: Callable[[], Any], timeout_s: float = 60) -> Any:
    """Wait until a condition is true, and return its value."""
    deadline = time.monotonic() + timeout_s
    while not (value := condition()):
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.01)
    return value


def wait_until_gone(pids: list[int], timeout_s: float) -> list[int]:
    """Return the processes that are still running after the timeout."""
    deadline = time.monotonic() + timeout_s
    while (survivors := [pid for pid in pids if is_running(pid)]) and time.monotonic() < deadline:
        time.sleep(0.02)
    return survivors


def all_command_lines() -> str:
    """Return the readable command lines of all processes on the machine."""
    lines = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit() and int(folder.name) != os.getpid():
            try:
                lines.append((folder / "cmdline").read_bytes().decode("utf-8", "replace"))
            except OSError:
                continue
    return "\n".join(lines)
