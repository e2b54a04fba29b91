"""Write files whole or not at all, and see whether another process has one."""

from __future__ import annotations

import fcntl
import os
import secrets
from pathlib import Path


def replace_file(path: Path, data: bytes, *, mode: int = 0o666) -> None:
    """Write a file over one that may exist; readers see the old or the new content.

    Args:
        path: The file; its folder exists.
        data: Its new content.
        mode: Its permissions, before the umask.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        with open(os.open(temporary, flags, mode), "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def is_file_locked(path: Path) -> bool:
    """Whether a process holds the lock (``flock``) of a file; one that is not there has none."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        # Shared: two processes that look at once do not see each other.
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False
