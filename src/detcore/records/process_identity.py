"""Which process a record belongs to, and whether that process is still there."""

from __future__ import annotations

import hashlib
import os
import socket
from pathlib import Path

from detcore.records.record_classes import ProcessIdentity


def identify_this_process() -> ProcessIdentity:
    """Return the identity of the calling process."""
    return identify_process(os.getpid())


def identify_process(pid: int) -> ProcessIdentity:
    """Return the identity of a process that shares the caller's machine and PID namespace."""
    machine = _read(Path("/etc/machine-id"))
    # The machine's name itself is meant to stay on it; databases travel.
    digest = hashlib.sha256(f"detcore {machine}".encode()).hexdigest()[:16] if machine else None
    return ProcessIdentity(
        host=socket.gethostname(),
        pid=pid,
        machine_id=digest,
        boot_id=_read(Path("/proc/sys/kernel/random/boot_id")),
        started=_stat(pid)[1],
        pid_namespace=_pid_namespace(),
    )


def is_alive(process: ProcessIdentity) -> bool | None:
    """Return whether a process is still there; None if that cannot be determined from here."""
    here = identify_this_process()
    # Containers of two machines may share a host name.
    if (process.host, process.machine_id) != (here.host, here.machine_id):
        return None
    if process.boot_id != here.boot_id:
        return False
    if process.pid_namespace != here.pid_namespace:
        return None
    try:
        os.kill(process.pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass  # it is there, under another user
    state, started = _stat(process.pid)
    if state in ("Z", "X"):
        return False
    return process.started is None or started is None or started == process.started


def _stat(pid: int) -> tuple[str | None, str | None]:
    """Return state and start time of a process, from Linux's /proc."""
    text = _read(Path(f"/proc/{pid}/stat"))
    if text is None:
        return None, None
    # The second field is the program's name in parentheses, which may hold anything.
    fields = text.rpartition(")")[2].split()
    return fields[0], fields[19]


def _pid_namespace() -> str | None:
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return None


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:  # not Linux, or the process has just ended
        return None
