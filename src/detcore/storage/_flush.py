"""Flush files to the disk in the background while the processor does other work."""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

if TYPE_CHECKING:
    import io
    from types import TracebackType


# Size of the pieces whose flush is started while the next one is written.
_PIECE_BYTES = 8 << 20
_RANGE_WRITE = 2  # SYNC_FILE_RANGE_WRITE: start writing, do not wait

# For fewer files, individual calls are as fast; with pending data of other processes, faster.
_MANY_FILES = 64
_MOST_DIRTY_BYTES = 256 << 20
# File systems on which syncfs flushes everything, and only data of this machine.
_LOCAL_KINDS = frozenset({"ext3", "ext4", "xfs"})
_SINCE = (5, 8)  # older releases of Linux reported no errors from syncfs


class Flusher:
    """A file that is flushed to the disk while it is written, and completely at the end.

    Args:
        file: The file, open for unbuffered writing.
    """

    def __init__(self, file: io.FileIO) -> None:
        self._file = file
        self._pool: ThreadPoolExecutor | None = None
        self._begun: list[Future[None]] = []
        self._start = 0
        self._size = 0

    def write(self, data: bytes | memoryview, /) -> int:
        """Write the data, of which the file may accept only a part."""
        written = self._file.write(data)
        self._size += written
        if self._size - self._start >= _PIECE_BYTES:
            if self._pool is None:
                # Starting a flush blocks while the disk is behind.
                self._pool = ThreadPoolExecutor(1, thread_name_prefix="detcore-flush")
            length = self._size - self._start
            self._begun.append(
                self._pool.submit(_begin_writing, self._file.fileno(), self._start, length)
            )
            self._start = self._size
        return written

    def __enter__(self) -> Flusher:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)
        if kind is None:
            for begun in self._begun:
                if not begun.cancelled():
                    begun.result()
            # This also reports every write error since the file was opened.
            os.fsync(self._file.fileno())


def _begin_writing(descriptor: int, start: int, length: int) -> None:
    """Start flushing a piece of a file, without waiting for the end."""
    sync_file_range = _function("sync_file_range")
    if sync_file_range is None:
        os.fdatasync(descriptor)
        return
    # Failures here (if the file system does not support it) are repeated or resolved by fsync.
    sync_file_range(descriptor, start, length, _RANGE_WRITE)


def _function(name: str) -> Callable[..., int] | None:
    """Return ``syncfs`` or ``sync_file_range`` on Linux; Python itself provides neither."""
    if not sys.platform.startswith("linux"):
        return None
    import ctypes

    function = getattr(ctypes.CDLL(None), name, None)
    if function is not None and name == "sync_file_range":
        function.argtypes = (ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint)
    found: Callable[..., int] | None = function
    return found


@contextlib.contextmanager
def flushing(file: BinaryIO) -> Iterator[None]:
    """Flush a file to the disk in parallel with the block; small files after it."""
    descriptor = file.fileno()
    if os.fstat(descriptor).st_size < _PIECE_BYTES:
        yield
        os.fsync(descriptor)
        return
    with ThreadPoolExecutor(1, thread_name_prefix="detcore-flush") as pool:
        flush = pool.submit(os.fsync, descriptor)
        yield
        flush.result()


@contextlib.contextmanager
def syncing_at_once(folder: Path, files: int) -> Iterator[bool]:
    """Flush all files of a folder to the disk after the block, with a single call.

    This is many times faster than one call for each of many small files. It also flushes data that
    other processes wrote to the same file system, so it is skipped if there is much of that.

    Args:
        folder: The existing folder that holds or will hold the files.
        files: Number of files.

    Yields:
        Whether the flush will happen. If not, the block must flush each file itself.

    Raises:
        OSError: If data of the file system could not be flushed.
    """
    syncfs = _function("syncfs")
    if syncfs is None or files < _MANY_FILES or not _is_syncfs_good(folder):
        yield False
        return
    # Errors are reported to descriptors that were open at the time.
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield True
        if syncfs(descriptor):
            raise OSError(errno.EIO, "could not be brought to the disk as a whole", str(folder))
    finally:
        os.close(descriptor)


def _is_syncfs_good(folder: Path) -> bool:
    release = os.uname().release.split(".")
    if tuple(int("".join(filter(str.isdigit, part)) or 0) for part in release[:2]) < _SINCE:
        return False
    return _kind_of(folder) in _LOCAL_KINDS and _dirty_bytes() < _MOST_DIRTY_BYTES


def _kind_of(folder: Path) -> str | None:
    """Return the kernel's name for the type of the file system that contains a folder."""
    device = folder.stat().st_dev
    number = f"{os.major(device)}:{os.minor(device)}"
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        mounted, _, kind = line.partition(" - ")
        if mounted.split(" ", 3)[2] == number:
            return kind.split(" ", 1)[0]
    return None


def _dirty_bytes() -> int:
    """Return the amount of data waiting to be written to this machine's disks, in bytes."""
    found = 0
    for line in Path("/proc/meminfo").read_text().splitlines():
        name, _, rest = line.partition(":")
        if name in ("Dirty", "Writeback"):
            found += int(rest.split()[0]) << 10
    return found
