"""Run the transfers of many files in threads."""

from __future__ import annotations

import functools
import statistics
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

# Files up to this size are uploaded in one request.
WHOLE_BYTES = 8 << 20
# Concurrent large files.
MAX_LARGE = 3
# Concurrent files, by size, so that less than 100 MB are in flight.
_CONCURRENCY = ((1 << 20, 12), (WHOLE_BYTES, 6), (1 << 62, MAX_LARGE))
_SLOW_CONCURRENCY = 64
_SLOW_S = 0.006
_MANY = 256
T = TypeVar("T")


def run_in_threads(
    work: Callable[[int], T], sizes: Sequence[int], *, max_threads: int | None = None
) -> list[T]:
    """Call `work` with each index, more concurrently for small files; stop at the first failure."""
    results: dict[int, T] = {}
    below = -1
    for limit, concurrency in _CONCURRENCY:
        indices = [index for index, size in enumerate(sizes) if below < size <= limit]
        below = limit
        threads = min(max_threads or concurrency, len(indices))
        if len(indices) >= _MANY and max_threads is None:
            # If requests take long, most of the time is waiting: run more of them concurrently.
            first, indices = indices[: 3 * threads], indices[3 * threads :]
            durations: list[float] = []
            timed = functools.partial(_measure, work, durations)
            results.update(zip(first, _run_all(timed, first, threads), strict=True))
            # The faster ones decide: a busy processor slows others down, too.
            if statistics.quantiles(durations, n=4)[0] > _SLOW_S:
                threads = _SLOW_CONCURRENCY
        results.update(zip(indices, _run_all(work, indices, threads), strict=True))
    return [results[index] for index in range(len(sizes))]


def _measure(work: Callable[[int], T], durations: list[float], index: int) -> T:
    start = time.monotonic()
    result = work(index)
    durations.append(time.monotonic() - start)
    return result


def _run_all(work: Callable[[int], T], indices: Sequence[int], threads: int) -> list[T]:
    if threads <= 1:
        return [work(index) for index in indices]
    results: dict[int, T] = {}
    queue = iter(indices)  # shared: each thread takes the next one
    stop = threading.Event()

    def run() -> None:
        try:
            for index in queue:
                results[index] = work(index)
                if stop.is_set():
                    return
        except BaseException:
            stop.set()
            raise

    with ThreadPoolExecutor(threads, thread_name_prefix="detcore-storage") as pool:
        futures = [pool.submit(run) for _ in range(threads)]
        try:
            for future in futures:
                future.result()
        finally:
            stop.set()
    return [results[index] for index in indices]
