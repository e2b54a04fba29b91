"""Bringing files to the disk while the processor does something else."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, BinaryIO

if TYPE_CHECKING:
    import io
    from types import TracebackType

__all__ = ["Flusher", "flushing"]

_PIECE_BYTES = 32 << 20


class Flusher:
    """A file whose content goes to the disk while more of it is written; all of it at the end.

    Args:
        file: Open for writing, without a buffer of its own.
    """

    def __init__(self, file: io.FileIO) -> None:
        self._file = file
        self._pool: ThreadPoolExecutor | None = None
        self._flush: Future[None] | None = None
        self._new = 0

    def write(self, data: bytes | memoryview, /) -> int:
        """Write what the file takes of it.

        Raises:
            OSError: Also if earlier data did not reach the disk.
        """
        written = self._file.write(data)
        self._new += written
        if self._new >= _PIECE_BYTES and (self._flush is None or self._flush.done()):
            self._check()
            self._new = 0
            if self._pool is None:
                self._pool = ThreadPoolExecutor(1, thread_name_prefix="detcore-flush")
            self._flush = self._pool.submit(os.fdatasync, self._file.fileno())
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
            self._pool.shutdown(wait=True)
        if kind is None:
            # Linux tells a file of a failed write once, so what the thread was told counts.
            self._check()
            os.fsync(self._file.fileno())

    def _check(self) -> None:
        if self._flush is not None:
            self._flush.result()


@contextlib.contextmanager
def flushing(file: BinaryIO) -> Iterator[None]:
    """Bring a file to the disk beside the block; small ones after it."""
    descriptor = file.fileno()
    if os.fstat(descriptor).st_size < _PIECE_BYTES:
        yield
        os.fsync(descriptor)
        return
    with ThreadPoolExecutor(1, thread_name_prefix="detcore-flush") as pool:
        flush = pool.submit(os.fsync, descriptor)
        yield
        flush.result()
