"""Read and write small files without file objects, whose overhead dominates for thousands."""

from __future__ import annotations

import os

from detcore.storage._digest import digest_bytes
from detcore.storage._protocol import DEFAULT_ALGORITHM, FileDigest

__all__ = ["SMALL_BYTES", "copy_whole", "read_whole", "write_whole"]

SMALL_BYTES = 1 << 18
"""Files below this size are moved one after the other by one thread: more threads are slower, as
they wait for the interpreter's lock."""

_READ = os.O_RDONLY | os.O_CLOEXEC
_WRITE = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC


def read_whole(path: str | os.PathLike[str], size: int) -> bytes:
    """Return a file's content.

    Args:
        path: The file.
        size: Its expected size in bytes; it may have more or fewer.
    """
    descriptor = os.open(path, _READ)
    try:
        data = os.read(descriptor, size + 1)
        if len(data) == size:
            return data
        with open(descriptor, "rb", buffering=0, closefd=False) as file:  # it is still growing
            return data + file.readall()
    finally:
        os.close(descriptor)


def write_whole(
    path: str | os.PathLike[str],
    data: bytes | memoryview,
    *,
    flags: int = 0,
    mode: int = 0o666,
    sync: bool = False,
) -> None:
    """Write a file, replacing an existing one.

    Args:
        path: The file; its folder exists.
        data: Its new content.
        flags: Further flags for `os.open`.
        mode: Permissions of a new file, before the umask.
        sync: Whether to flush it to the disk.
    """
    descriptor = os.open(path, _WRITE | flags, mode)
    try:
        written = os.write(descriptor, data)
        while written < len(data):
            written += os.write(descriptor, memoryview(data)[written:])
        if sync:
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def copy_whole(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str] | None,
    size: int,
    *,
    algorithm: str = DEFAULT_ALGORITHM,
    mode: int = 0o666,
    sync: bool = False,
) -> FileDigest:
    """Copy a small file (to None: only read it); return the digest of the bytes read."""
    data = read_whole(source, size)
    if target is not None:
        write_whole(target, data, mode=mode, sync=sync)
    return digest_bytes(data, algorithm)
