"""`run_ranks` returns results by rank, and names the rank that caused a failure."""

from __future__ import annotations

import os
import time
from typing import Any

import pytest

from detcore.distributed import DistributedContext
from detcore_testing import RankError, run_ranks


def test_results_are_ordered_by_rank() -> None:
    def work(distributed: DistributedContext) -> tuple[int, list[int]]:
        return distributed.rank * 10, distributed.allgather(distributed.rank)

    assert run_ranks(work, 3) == [(10 * rank, [0, 1, 2]) for rank in range(3)]


def test_error_names_the_rank_that_raised() -> None:
    def work(distributed: DistributedContext) -> Any:
        if distributed.rank == 1:
            raise LookupError("nothing there")
        return distributed.allgather(0)

    with pytest.raises(RankError, match="rank 1: LookupError: nothing there") as caught:
        run_ranks(work, 3)
    assert caught.value.rank == 1


def test_error_names_the_rank_that_died() -> None:
    def work(distributed: DistributedContext) -> Any:
        if distributed.rank == 1:
            os._exit(3)
        return distributed.allgather(0)

    with pytest.raises(RankError, match="rank 1: its process exited with code 3"):
        run_ranks(work, 2)


def test_error_names_the_rank_that_hangs() -> None:
    def work(distributed: DistributedContext) -> None:
        time.sleep(30 * distributed.rank)

    with pytest.raises(RankError, match="rank 1: did not finish within 2"):
        run_ranks(work, 2, timeout_s=2)
