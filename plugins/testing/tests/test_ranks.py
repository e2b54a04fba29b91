"""`run_ranks`: results by rank, and failures with the rank that is to blame."""

from __future__ import annotations

import os
import threading
from typing import Any, Literal

import pytest

from detcore.distributed import DistributedContext
from detcore_testing import RankError, run_ranks

How = Literal["threads", "processes"]
HOWS: tuple[How, ...] = ("threads", "processes")


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("size", [1, 3])
def test_results_come_by_rank(how: How, size: int) -> None:
    def work(distributed: DistributedContext) -> tuple[int, list[int]]:
        return distributed.rank * 10, distributed.allgather(distributed.rank)

    expected = [(10 * rank, list(range(size))) for rank in range(size)]
    assert run_ranks(work, size, how) == expected


def test_ranks_are_what_was_asked_for() -> None:
    def where(distributed: DistributedContext) -> tuple[int, str]:
        return os.getpid(), threading.current_thread().name

    assert {pid for pid, _ in run_ranks(where, 2, "threads")} == {os.getpid()}
    pids = {pid for pid, _ in run_ranks(where, 2, "processes")}
    assert len(pids - {os.getpid()}) == 2


@pytest.mark.parametrize("how", HOWS)
def test_the_rank_that_raises_is_named_and_not_one_that_lost_it(how: How) -> None:
    def work(distributed: DistributedContext) -> Any:
        if distributed.rank == 1:
            raise LookupError("nothing there")
        return distributed.allgather(0)

    with pytest.raises(RankError, match="rank 1: LookupError: nothing there") as caught:
        run_ranks(work, 3, how)
    assert caught.value.rank == 1
    assert caught.value.__cause__ is not None


def test_a_process_that_dies_is_named() -> None:
    def work(distributed: DistributedContext) -> Any:
        if distributed.rank == 1:
            os._exit(3)
        return distributed.allgather(0)

    with pytest.raises(RankError, match="rank 1: its process ended with code 3"):
        run_ranks(work, 2, "processes")


@pytest.mark.parametrize("how", HOWS)
def test_a_rank_that_does_not_end_is_named(how: How) -> None:
    release = threading.Event()

    def work(distributed: DistributedContext) -> None:
        if distributed.rank == 1:
            release.wait(30)

    try:
        with pytest.raises(RankError, match="rank 1: did not come to an end within 2"):
            run_ranks(work, 2, how, timeout_s=2)
    finally:
        release.set()


def test_what_is_no_number_of_ranks_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one rank"):
        run_ranks(lambda distributed: 0, 0)
    with pytest.raises(ValueError, match="'threads' or 'processes'"):
        run_ranks(lambda distributed: 0, 1, "fibers")  # type: ignore[arg-type]
