"""Latency and bandwidth of ``allgather``: ``python benchmarks/distributed.py [2 4 8]``.

The same for gloo (``all_gather_object``) where torch is installed. Each rank is a process; the
median of rank 0 is printed.
"""

from __future__ import annotations

import importlib.util
import os
import socket
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

ARRAY_BYTES = 64 << 20
CALLS = 500
LARGE_CALLS = 5


def open_detcore(rank: int, size: int, key: str) -> Callable[[Any], list[Any]]:
    """Join with detcore; return its allgather."""
    from detcore.distributed import DistributedContext

    context = DistributedContext(
        rank=rank, size=size, local_rank=rank, local_size=size, cross_rank=0, cross_size=1, key=key
    )
    return context.allgather


def open_gloo(rank: int, size: int, key: str) -> Callable[[Any], list[Any]]:
    """Join with torch.distributed; return an allgather of objects."""
    import torch.distributed as dist

    dist.init_process_group("gloo", f"tcp://127.0.0.1:{key}", rank=rank, world_size=size)

    def allgather(value: Any) -> list[Any]:
        values = [None] * size
        dist.all_gather_object(values, value)
        return values

    return allgather


def measure(allgather: Callable[[Any], list[Any]], rank: int) -> tuple[float, float]:
    """Return the median microseconds of a small call, and megabytes per second of a large one."""
    small = {"rank": rank, "loss": 0.25, "batches": 100}
    large = np.full(ARRAY_BYTES // 4, rank, np.float32)

    def median_s(value: Any, calls: int) -> float:
        times = []
        for _ in range(calls + 2):
            start = time.perf_counter()
            allgather(value)
            times.append(time.perf_counter() - start)
        return statistics.median(times[2:])

    return median_s(small, CALLS) * 1e6, ARRAY_BYTES / median_s(large, LARGE_CALLS) / 1e6


def run(opener: Callable[[int, int, str], Callable[[Any], list[Any]]], size: int) -> str:
    """Fork the ranks and return what rank 0 measured."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        key = str(probe.getsockname()[1])
    reader, writer = os.pipe()
    pids = []
    for rank in range(size):
        pid = os.fork()
        if pid == 0:
            latency, bandwidth = measure(opener(rank, size, key), rank)
            if rank == 0:
                os.write(writer, f"{latency:8.0f} us {bandwidth:8.0f} MB/s".encode())
            os._exit(0)
        pids.append(pid)
    os.close(writer)
    for pid in pids:
        os.waitpid(pid, 0)
    with os.fdopen(reader) as pipe:
        return pipe.read() or "failed"


def main() -> None:
    """Measure every size with every implementation that is installed."""
    openers = {"detcore": open_detcore}
    if importlib.util.find_spec("torch"):
        openers["gloo"] = open_gloo
    for size in [int(text) for text in sys.argv[1:]] or [2, 4, 8]:
        for name, opener in openers.items():
            print(f"{size} processes  {name:8} {run(opener, size)}", flush=True)


if __name__ == "__main__":
    main()
