"""Name the files that probe a storage, and recognize those left by dead processes."""

from __future__ import annotations

import hashlib
import os
import re
import socket
import time
import uuid
from pathlib import Path

__all__ = ["PROBES", "is_left_over", "probe_name"]

PROBES = ".detcore-probe"
_NAME = re.compile(r"(\d+)-(\d+)-([0-9a-f]*)-[0-9a-f]{32}")
# A probe takes seconds; the clocks of machines may differ by more.
_OLD_S = 24 * 3600.0


def probe_name() -> str:
    """Return a unique name, which contains the time and the process that made it."""
    return f"{int(time.time())}-{os.getpid()}-{_place()}-{uuid.uuid4().hex}"


def is_left_over(name: str) -> bool:
    """Whether the process that made a name is gone, or made it more than a day ago."""
    match = _NAME.fullmatch(name)
    if match is None:
        return False
    made_at, pid, place = int(match[1]), int(match[2]), match[3]
    if time.time() - made_at > _OLD_S:
        return True
    # Process ids of another machine, or container, are meaningless here.
    return bool(place) and place == _place() and not _is_there(pid)


def _is_there(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:  # it belongs to another user
        return True
    return True


def _place() -> str:
    """Return an identifier of the processes visible to this one; "" if it is unknown."""
    try:
        boot_id = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        namespace = os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""
    text = f"{socket.gethostname()} {boot_id} {namespace}"
    return hashlib.sha256(text.encode()).hexdigest()[:12]
