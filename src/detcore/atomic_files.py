"""Write files atomically, and check whether another process holds a file's lock."""

from __future__ import annotations

import fcntl
import os
import secrets
from pathlib import Path


def replace_file(path: Path, data: bytes, *, mode: int = 0o666) -> None:
    """Create or replace a file. Readers see the old or the new content.

    Args:
        path: The file. Its directory must exist.
        data: New content.
        mode: Permissions, before the umask.
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
    """Whether a process holds the lock (``flock``) of a file; False if the file is missing."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        # A shared lock, so that two processes that check concurrently do not see each other.
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False
