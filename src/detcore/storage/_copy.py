"""Copy bytes and digest them on the way, several files in parallel."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import BinaryIO, Protocol, TypeVar

from detcore.storage._digest import Digester, read_chunks
from detcore.storage._protocol import DEFAULT_ALGORITHM, FileDigest, Progress
from detcore.storage._small import SMALL_BYTES

__all__ = ["Sink", "copy_stream", "run_all", "write_all"]

_WORKERS = 4
_SMALL_BATCH = 64

T = TypeVar("T")


class Sink(Protocol):
    """Target of bytes."""

    def write(self, data: bytes | memoryview, /) -> int | None:
        """Write bytes."""


def copy_stream(
    source: BinaryIO,
    sink: Sink | None,
    progress: Progress | None = None,
    *,
    algorithm: str = DEFAULT_ALGORITHM,
) -> FileDigest:
    """Copy a stream to another (None: only read it), and return the digest of the copied bytes."""
    digester = Digester(algorithm)
    for chunk in read_chunks(source):
        digester.update(chunk)
        if sink is not None:
            write_all(sink, chunk)
        if progress is not None:
            progress(len(chunk))
    return digester.result()


def write_all(sink: Sink, data: bytes | memoryview) -> None:
    """Write all of the data: an unbuffered file may accept only a part of it."""
    size = len(data)
    written = sink.write(data)
    while written is not None and written < size:
        written += sink.write(memoryview(data)[written:]) or 0


def run_all(
    work: Callable[[T], FileDigest],
    items: Sequence[T],
    sizes: Sequence[int],
    *,
    workers: int | None = None,
) -> list[FileDigest]:
    """Apply `work` to all items, large ones in parallel, small ones in batches.

    All work that has started has finished when this returns or raises.

    Args:
        work: Called once per item, from any thread.
        items: The items.
        sizes: Size of each item in bytes, for balancing; estimates are sufficient.
        workers: Maximum number of threads; default: some for each processor.

    Returns:
        The results, in the order of the items.
    """
    batches = _batches(sizes)
    if len(batches) < 2:
        return [work(item) for item in items]
    from concurrent.futures import ThreadPoolExecutor

    results: dict[int, FileDigest] = {}

    def run(batch: list[int]) -> None:
        for index in batch:
            results[index] = work(items[index])

    workers = min(workers or min(_WORKERS, 2 * (os.cpu_count() or 1)), len(batches))
    with ThreadPoolExecutor(workers, thread_name_prefix="detcore-storage") as pool:
        futures = [pool.submit(run, batch) for batch in batches]
        try:
            for future in futures:
                future.result()
        except BaseException:
            pool.shutdown(wait=True, cancel_futures=True)
            raise
    return [results[index] for index in range(len(items))]


def _batches(sizes: Sequence[int]) -> list[list[int]]:
    """Group indices: large files alone, largest first, then batches of small ones."""
    large = [index for index, size in enumerate(sizes) if size >= SMALL_BYTES]
    small = [index for index, size in enumerate(sizes) if size < SMALL_BYTES]
    large.sort(key=lambda index: sizes[index], reverse=True)
    return [
        *([index] for index in large),
        *(small[start : start + _SMALL_BATCH] for start in range(0, len(small), _SMALL_BATCH)),
    ]
