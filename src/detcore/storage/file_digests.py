"""Compute digests, which detect changes of stored files, and copy files in several threads."""

from __future__ import annotations

import io
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, BinaryIO, Protocol, TypeVar

from detcore.contract.storage import FileDigest, Progress

if TYPE_CHECKING:
    from pathlib import Path


# Larger pieces are not digested faster, and writing them is slower: Linux then searches for large
# pages, which took up to eight times as long on virtual machines.
CHUNK_BYTES = 1 << 18
SMALL_BYTES = 1 << 18
"""A single thread reads files below this size, because more threads wait for the interpreter's
lock."""
_MAX_WORKERS = 4

T = TypeVar("T")


class Digester:
    """Digests bytes incrementally.

    XXH3 does not protect against attackers. It does not need to: anyone who can change a file can
    also change the manifest. XXH3 detects accidents as reliably as SHA-256, in a thirtieth of the
    time; see docs/storage.md for the reasons and the numbers.
    """

    def __init__(self) -> None:
        import xxhash

        self._hash = xxhash.xxh3_128()
        self._size = 0

    def update(self, data: bytes | bytearray | memoryview) -> None:
        """Add the next bytes."""
        self._hash.update(data)
        self._size += len(data)

    def result(self) -> FileDigest:
        """Return the digest of all bytes so far."""
        return FileDigest(self._size, self._hash.hexdigest())


def digest_bytes(data: bytes | bytearray | memoryview) -> FileDigest:
    """Return the digest of a value in memory."""
    digester = Digester()
    digester.update(data)
    return digester.result()


def read_chunks(source: BinaryIO) -> Iterator[memoryview | bytes]:
    """Read a stream to its end. Each piece is valid until the next piece is requested.

    Unbuffered files are read into a single reused buffer, because allocating memory for each piece
    costs more than reading it.
    """
    if not isinstance(source, io.FileIO):
        while chunk := source.read(CHUNK_BYTES):
            yield chunk
        return
    buffer = memoryview(bytearray(CHUNK_BYTES))
    while size := source.readinto(buffer):
        yield buffer[:size]


class ByteSink(Protocol):
    """A target to which bytes can be written."""

    def write(self, data: bytes | memoryview, /) -> int | None:
        """Write bytes."""


def copy_stream(
    source: BinaryIO,
    sink: ByteSink | None,
    progress: Progress | None = None,
) -> FileDigest:
    """Copy a stream to another (None: only read it), and return the digest of the copied bytes."""
    digester = Digester()
    for chunk in read_chunks(source):
        digester.update(chunk)
        if sink is not None:
            write_all(sink, chunk)
        if progress is not None:
            progress(len(chunk))
    return digester.result()


def write_all(sink: ByteSink, data: bytes | memoryview) -> None:
    """Write all data. An unbuffered file may accept only a part of the data per call."""
    size = len(data)
    num_written = sink.write(data)
    while num_written is not None and num_written < size:
        num_written += sink.write(memoryview(data)[num_written:]) or 0


def digest_file(path: Path) -> FileDigest:
    """Return the digest of a local file."""
    with open(path, "rb", buffering=0) as file:
        return copy_stream(file, None)


def run_all(
    work: Callable[[int], T],
    sizes: Sequence[int],
    *,
    small_bytes: int = SMALL_BYTES,
    workers: int | None = None,
    small_workers: int | None = None,
) -> list[T]:
    """Call `work` with each index: first large files by descending size, then small files.

    When this returns or raises, all started work has finished. The first failure stops new work.

    Args:
        work: Called once per index, from any thread.
        sizes: Size of each file in bytes, for balancing; estimates are sufficient.
        small_bytes: Files below this size are small.
        workers: Maximum number of threads; default: depends on the number of processors.
        small_workers: Maximum number of threads for small files; default: `workers`.

    Returns:
        The results, in the order of the indices.
    """
    large = sorted((index for index, size in enumerate(sizes) if size >= small_bytes),
                   key=lambda index: sizes[index], reverse=True)  # fmt: skip
    small = [index for index, size in enumerate(sizes) if size < small_bytes]
    workers = workers or min(_MAX_WORKERS, 2 * (os.cpu_count() or 1))
    results = _run_in_threads(work, large, workers)
    results |= _run_in_threads(work, small, small_workers or workers)
    return [results[index] for index in range(len(sizes))]


def _run_in_threads(work: Callable[[int], T], indices: Sequence[int], workers: int) -> dict[int, T]:
    workers = min(workers, len(indices))
    if workers < 2:
        return {index: work(index) for index in indices}
    from concurrent.futures import ThreadPoolExecutor

    results: dict[int, T] = {}
    queue = iter(indices)  # shared: each thread takes the next index
    stop = threading.Event()

    def work_through_queue() -> None:
        try:
            for index in queue:
                if stop.is_set():
                    return
                results[index] = work(index)
        except BaseException:
            stop.set()
            raise

    with ThreadPoolExecutor(workers, thread_name_prefix="detcore-storage") as pool:
        futures = [pool.submit(work_through_queue) for _ in range(workers)]
        try:
            for future in futures:
                future.result()
        finally:
            stop.set()
    return results
