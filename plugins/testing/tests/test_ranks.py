"""`run_ranks`: results by rank, and failures with the rank that is to blame."""

from __future__ import annotations

import os
import time
from typing import Any

import pytest

from detcore.distributed import DistributedContext
from detcore_testing import RankError, run_ranks


def test_results_come_by_rank() -> None:
    def work(distributed: DistributedContext) -> tuple[int, list[int]]:
        return distributed.rank * 10, distributed.allgather(distributed.rank)

    assert run_ranks(work, 3) == [(10 * rank, [0, 1, 2]) for rank in range(3)]


def test_the_rank_that_raises_is_named_and_not_one_that_lost_it() -> None:
    def work(distributed: DistributedContext) -> Any:
        if distributed.rank == 1:
            raise LookupError("nothing there")
        return distributed.allgather(0)

    with pytest.raises(RankError, match="rank 1: LookupError: nothing there") as caught:
        run_ranks(work, 3)
    assert caught.value.rank == 1


def test_a_process_that_dies_is_named() -> None:
    def work(distributed: DistributedContext) -> Any:
        if distributed.rank == 1:
            os._exit(3)
        return distributed.allgather(0)

    with pytest.raises(RankError, match="rank 1: its process ended with code 3"):
        run_ranks(work, 2)


def test_a_rank_that_does_not_end_is_named() -> None:
    def work(distributed: DistributedContext) -> None:
        time.sleep(30 * distributed.rank)

    with pytest.raises(RankError, match="rank 1: did not come to an end within 2"):
        run_ranks(work, 2, timeout_s=2)
