"""Report the progress of transfers to an observer."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from detcore.storage import Progress

__all__ = ["TransferObserver", "watched"]


class TransferObserver(Protocol):
    """Receives the progress of transfers; most of them are short."""

    def transfer(self, name: str, size_bytes: int) -> AbstractContextManager[Progress]:
        """Begin to watch a transfer, which lasts as long as the block.

        Args:
            name: Operation and checkpoint, such as ``"saving 6d1c0a3b"``.
            size_bytes: Number of bytes to move or read.

        Returns:
            A context manager that provides a function to call, from any thread, with the bytes
            moved since the last call. Their sum may exceed `size_bytes` after retries.
        """


@contextlib.contextmanager
def watched(
    observer: TransferObserver | None, name: str, size_bytes: int
) -> Iterator[Progress | None]:
    """Provide a function that reports bytes to the observer, or None without an observer."""
    if observer is None or not size_bytes:
        yield None
        return
    with observer.transfer(name, size_bytes) as progress:
        yield progress
