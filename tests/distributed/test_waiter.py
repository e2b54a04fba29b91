"""Ranks poll for a moment before they sleep, where every rank has a core."""

from __future__ import annotations

import os
import select

from detcore.distributed._board import Waiter

ASLEEP_S = 0.001
CORES = len(os.sched_getaffinity(0))


class Poller:
    """A real poller that remembers how it was asked, in milliseconds."""

    def __init__(self, descriptor: int) -> None:
        self.asked: list[float] = []
        self._poller = select.poll()
        self._poller.register(descriptor, select.POLLIN)

    def poll(self, timeout_ms: float) -> list[tuple[int, int]]:
        self.asked.append(timeout_ms)
        return self._poller.poll(timeout_ms)

    def slept(self) -> list[bool]:
        """Return for each question since the last call whether it allowed sleep."""
        asked, self.asked = self.asked, []
        return [timeout_ms > 0 for timeout_ms in asked]


def test_polls_then_sleeps_and_gives_up_where_polling_is_in_vain() -> None:
    descriptor = os.eventfd(0)
    poller = Poller(descriptor)
    waiter = Waiter(poller, CORES, spin_s=0.02)  # type: ignore[arg-type]  # a poller that counts
    in_vain = []
    for _ in range(16):
        assert waiter.wait(ASLEEP_S) == []
        in_vain.append(len(poller.slept()) > 1)
    assert [number for number, polled in enumerate(in_vain) if polled] == [0, 2, 5, 10]

    os.eventfd_write(descriptor, 1)
    for _ in range(64):
        assert waiter.wait(ASLEEP_S) == [(descriptor, select.POLLIN)]
    poller.slept()
    waiter.wait(ASLEEP_S)
    assert poller.slept() == [False], "polling was of use again"
    os.close(descriptor)


def test_sleeps_at_once_where_ranks_outnumber_cores() -> None:
    descriptor = os.eventfd(0)
    for ranks in (CORES + 1, 0):
        poller = Poller(descriptor)
        assert Waiter(poller, ranks).wait(ASLEEP_S) == []  # type: ignore[arg-type]  # it counts
        assert poller.slept() == [True]
    poller = Poller(descriptor)
    assert Waiter(poller, 1).wait(0) == []  # type: ignore[arg-type]  # it counts
    assert poller.slept() == [False], "a look does not wait"
    os.close(descriptor)
