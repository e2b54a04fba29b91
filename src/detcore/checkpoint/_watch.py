"""Telling somebody how far a transfer has come."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from detcore.storage import Progress

__all__ = ["TransferObserver", "watched"]


class TransferObserver(Protocol):
    """Is told of transfers; most of them are short."""

    def transfer(self, name: str, size_bytes: int) -> AbstractContextManager[Progress]:
        """Begin to watch a transfer, which lasts as long as the block.

        Args:
            name: What is done, and with which checkpoint, such as ``"saving 6d1c0a3b"``.
            size_bytes: How much is to be moved, or read.

        Returns:
            Gives the block what is called with the bytes moved since the last call, from any
            thread. Their sum may pass `size_bytes`, where something had to be sent twice.
        """


@contextlib.contextmanager
def watched(
    observer: TransferObserver | None, name: str, size_bytes: int
) -> Iterator[Progress | None]:
    """Give the block what tells an observer of bytes, or None if there is no observer."""
    if observer is None or not size_bytes:
        yield None
        return
    with observer.transfer(name, size_bytes) as progress:
        yield progress
