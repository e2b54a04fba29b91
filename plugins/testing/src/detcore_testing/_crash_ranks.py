"""Run workers of one job as threads of one process, one of which may die."""

from __future__ import annotations

import threading
from typing import Any

from detcore.errors import PeerLostError

__all__ = ["Job", "Rank"]


class Job:
    """Several workers that exchange values until one of them is gone.

    Args:
        size: Number of workers.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self._barrier = threading.Barrier(size)
        self._values: list[Any] = [None] * size

    def lose(self) -> None:
        """Notify the other workers that one is gone."""
        self._barrier.abort()

    def gather(self, rank: int, value: Any) -> list[Any]:
        """Return the values of all workers, once each of them has supplied one.

        Raises:
            PeerLostError: If a worker is gone.
        """
        self._values[rank] = value
        try:
            self._barrier.wait()
            values = list(self._values)
            self._barrier.wait()
        except threading.BrokenBarrierError:
            raise PeerLostError("another worker is gone") from None
        return values


class Rank:
    """A worker's position in a job: the part of `DistributedContext` that saving needs."""

    def __init__(self, job: Job, rank: int) -> None:
        self._job = job
        self.rank = rank
        self.size = job.size

    def allgather(self, stuff: Any) -> list[Any]:
        """Return every worker's value in rank order."""
        return self._job.gather(self.rank, stuff)
