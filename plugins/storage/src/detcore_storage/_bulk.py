"""Transfer many files over one asynchronous fsspec file system, within a memory bound.

fsspec's calls for several files are not used: they expand ``*?[]`` in names, and their results
depend on existing files. Their speed comes from many concurrent requests, which this module makes.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, TypeVar

from detcore.storage import (
    FileDigest,
    Progress,
    Sink,
    digest_bytes,
    read_whole,
    write_whole,
)
from detcore_storage._remote import read_parts
from detcore_storage._retries import RetryPolicy, retry_async

# Files up to this size are transferred in one request; larger ones are read in parts.
LARGE_BYTES = 8 << 20
_PART_BYTES = 4 << 20
_PARTS_AHEAD = 3
# Concurrent requests for files below a size, so that less than 64 MB are in flight.
_AT_ONCE = ((1 << 20, 48), (LARGE_BYTES, 8))
T = TypeVar("T")


class BulkTransfers:
    """Transfers of many files.

    Args:
        fs: An asynchronous fsspec file system.
        policy: The retry policy.
    """

    def __init__(self, fs: Any, policy: RetryPolicy) -> None:
        self._fs = fs
        self._policy = policy

    def run(self, work: Callable[[], Awaitable[T]]) -> T:
        """Run one call with retries on the file system's loop; callable from any other thread."""
        from fsspec.asyn import sync

        async def run() -> T:
            return await retry_async(work, self._policy)

        result: T = sync(self._fs.loop, run)
        return result

    def put_small(
        self, files: Sequence[tuple[Path, str, int]], progress: Progress | None
    ) -> list[FileDigest]:
        """Upload files, each in one request.

        Args:
            files: Local file, path in the file system, size in bytes.
            progress: Called after each file with its size.
        """

        async def put(path: Path, target: str, size: int) -> FileDigest:
            data = read_whole(path, size)
            await retry_async(lambda: self._fs._pipe_file(target, data), self._policy)
            if progress is not None:
                progress(len(data))
            return digest_bytes(data)

        return self._all(
            [(size, functools.partial(put, path, target, size)) for path, target, size in files]
        )

    def get_small(
        self,
        files: Sequence[tuple[Path | None, str, int]],
        progress: Progress | None,
    ) -> list[FileDigest]:
        """Download files, each in one request.

        Args:
            files: Local file (None = only digest it), path in the file system, size in bytes.
            progress: Called after each file with its size.
        """

        async def get(path: Path | None, source: str, size: int) -> FileDigest:
            data = await self._read(source, 0, size)
            if path is not None:
                write_whole(path, data)
            if progress is not None:
                progress(len(data))
            return digest_bytes(data)

        return self._all(
            [(size, functools.partial(get, path, source, size)) for path, source, size in files]
        )

    def read_large(
        self,
        source: str,
        size: int,
        sink: Sink | None,
        progress: Progress | None,
    ) -> FileDigest:
        """Download a large file in parts; see `read_parts`."""

        def request(start: int, stop: int) -> Future[bytes]:
            return asyncio.run_coroutine_threadsafe(self._read(source, start, stop), self._fs.loop)

        return read_parts(
            request, size, sink, part_bytes=_PART_BYTES, max_parts=_PARTS_AHEAD,
            progress=progress,
        )  # fmt: skip

    async def _read(self, source: str, start: int, stop: int) -> bytes:
        if start == stop:
            return b""

        async def read() -> bytes:
            data: bytes = await self._fs._cat_file(source, start=start, end=stop)
            if len(data) != stop - start:
                raise ConnectionError(
                    f"{len(data)} bytes came instead of {stop - start}; the connection was cut, or "
                    "the file changed"
                )
            return data

        return await retry_async(read, self._policy)

    def delete(self, paths: Sequence[str]) -> None:
        """Delete files; those that do not exist are skipped."""

        async def delete(path: str) -> None:
            try:
                await retry_async(lambda: self._fs._rm_file(path), self._policy)
            except FileNotFoundError:
                return

        self._all([(0, functools.partial(delete, path)) for path in paths])

    def _all(self, work: Sequence[tuple[int, Callable[[], Awaitable[T]]]]) -> list[T]:
        """Do all work with limited concurrency; the first failure cancels the rest."""
        from fsspec.asyn import sync

        async def run() -> list[T]:
            results: dict[int, T] = {}
            below = -1
            for limit, at_once in _AT_ONCE:
                indices = iter([i for i, (size, _) in enumerate(work) if below < size <= limit])
                below = limit

                async def go_on(indices: Iterator[int] = indices) -> None:
                    for index in indices:
                        results[index] = await work[index][1]()

                tasks = [asyncio.ensure_future(go_on()) for _ in range(min(at_once, len(work)))]
                try:
                    await asyncio.gather(*tasks)
                finally:
                    for task in tasks:
                        task.cancel()
                    await asyncio.gather(*tasks, return_exceptions=True)
            return [results[index] for index in range(len(work))]

        results: list[T] = sync(self._fs.loop, run)
        return results
