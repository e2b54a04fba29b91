"""Reducers over real processes: the value is that of one worker, bit for bit."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys

# One reducer for each kind of state: sums, all values, scores by label, counts.
WORKER = """
import sys
import numpy as np
from detcore.core import DistributedContext
from detcore.metrics import AUROC, ConfusionMatrix, Mean, Quantiles

rank, size = map(int, sys.argv[1:])
numbers = np.random.default_rng(12).lognormal(0, 8, 1003)  # a naive sum would lose digits
labels = (numbers > 1).astype(np.int32)
columns = {
    Mean(): {"values": numbers},
    Quantiles([0, 0.1, 0.5]): {"values": numbers},
    AUROC(): {"labels": labels, "predictions": numbers.round()},
    ConfusionMatrix(2): {"labels": labels, "predictions": labels[::-1]},
}

def accumulate(records):
    for reducer, parts in columns.items():
        reducer.reset()
        yield reducer.accumulate({name: column[records] for name, column in parts.items()})

def reduce(states):
    return [
        reducer.cross_slot_reduce([state[index] for state in states])
        for index, reducer in enumerate(columns)
    ]

place = {"rank": rank, "size": size, "local_rank": rank, "local_size": size}
with DistributedContext(**place, cross_rank=0, cross_size=1) as distributed:
    for mine in (slice(rank, None, size), slice(0, None if rank == size - 1 else 0)):
        together = reduce(distributed.allgather(list(accumulate(mine))))
        for value, expected in zip(together, reduce([list(accumulate(slice(None)))])):
            assert np.array_equal(value, expected), (mine, value, expected)
"""


def test_reducers_work_across_processes() -> None:
    environ = {**os.environ, "DETCORE_JOB_KEY": secrets.token_hex(16)}
    workers = [
        subprocess.Popen(
            [sys.executable, "-W", "error", "-c", WORKER, str(rank), "3"],
            env=environ, stderr=subprocess.PIPE, text=True,
        )
        for rank in range(3)
    ]  # fmt: skip
    errors = [worker.communicate(timeout=120)[1] for worker in workers]
    assert [worker.returncode for worker in workers] == [0, 0, 0], errors
