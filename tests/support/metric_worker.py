"""One worker of tests/metrics/test_workers.py: ``metric_worker.py RANK SIZE``.

It evaluates its shard with every reducer, merges over the workers through `DistributedContext`, and
compares with one worker that has all records. Prints a JSON object.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from detcore.core import DistributedContext
from detcore.metrics import (
    AUROC,
    Accuracy,
    AveragePrecision,
    ConfusionMatrix,
    Count,
    F1Score,
    Mean,
    MeanAbsoluteError,
    MeanSquaredError,
    MetricReducer,
    Precision,
    Quantiles,
    Recall,
    RootMeanSquaredError,
    Sum,
)

NUM_RECORDS = 1003
BATCH = 32  # records; the last batch of a shard is shorter

Indices = Any
Shards = Callable[[int, int], Indices]


def records() -> dict[str, Any]:
    """Columns whose sums lose digits if they are added carelessly."""
    generator = np.random.default_rng(12)
    label = generator.integers(0, 4, NUM_RECORDS)
    score = np.round(generator.uniform(0, 1, NUM_RECORDS), 2)  # ties, also between classes
    number = generator.lognormal(0, 8, NUM_RECORDS) * generator.choice([-1, 1], NUM_RECORDS)
    return {
        "number": number,
        "near": (number * generator.uniform(0.9, 1.1, NUM_RECORDS)).astype(np.float32),
        "weight": generator.uniform(0, 3, NUM_RECORDS),
        "label": label,
        "class": np.where(generator.uniform(size=NUM_RECORDS) < 0.6, label, 1),
        "binary": (label > 1).astype(np.int32),
        "score": score,
    }


def reducers() -> dict[str, tuple[MetricReducer, dict[str, str]]]:
    """Reducers with the columns that they take."""
    numbers = {"labels": "number", "predictions": "near"}
    classes = {"labels": "label", "predictions": "class"}
    scores = {"labels": "binary", "predictions": "score"}
    return {
        "mean": (Mean(), {"values": "number"}),
        "weighted mean": (Mean(), {"values": "number", "weights": "weight"}),
        "sum": (Sum(), {"values": "number"}),
        "count": (Count(), {"values": "number"}),
        "mae": (MeanAbsoluteError(), {**numbers, "weights": "weight"}),
        "mse": (MeanSquaredError(), numbers),
        "rmse": (RootMeanSquaredError(), numbers),
        "quantiles": (Quantiles([0, 0.1, 0.5, 0.99]), {"values": "number"}),
        "accuracy": (Accuracy(), classes),
        "accuracy at 0.5": (Accuracy(threshold=0.5), scores),
        "precision": (Precision(threshold=0.3), scores),
        "recall": (Recall("macro"), classes),
        "f1": (F1Score("macro", num_classes=4), classes),
        "f1 of all": (F1Score("micro"), classes),
        "confusion": (ConfusionMatrix(4), classes),
        "auroc": (AUROC(), scores),
        "average precision": (AveragePrecision(), scores),
    }


def in_turns(rank: int, size: int) -> Indices:
    """As detcore shards: record i is that of rank ``i % size``."""
    return np.arange(rank, NUM_RECORDS, size)


def uneven(rank: int, size: int) -> Indices:
    """One after the other; rank r gets r + 1 parts."""
    ends = np.cumsum([0, *range(1, size + 1)]) * NUM_RECORDS // (size * (size + 1) // 2)
    return np.arange(ends[rank], ends[rank + 1])


def all_on_the_last(rank: int, size: int) -> Indices:
    """The other shards are empty."""
    return np.arange(NUM_RECORDS if rank == size - 1 else 0)


def shuffled(rank: int, size: int) -> Indices:
    """Any records, and rank 0 has none if there are others."""
    generator = np.random.default_rng(size)
    owners = generator.integers(min(1, size - 1), size, NUM_RECORDS)
    return generator.permutation(NUM_RECORDS)[owners == rank]


def work(distributed: DistributedContext) -> dict[str, Any]:
    """Check every reducer with every way to shard."""
    data = records()
    shardings: list[Shards] = [in_turns, uneven, all_on_the_last, shuffled]
    wrong = []
    values = {}
    for shard in shardings:
        mine = shard(distributed.rank, distributed.size)
        shares = distributed.allgather(len(mine))
        if sum(shares) != NUM_RECORDS:
            wrong.append(f"{shard.__name__} has {shares} records")
        # One exchange for all metrics, after the last batch; None from who had no batch.
        states = distributed.allgather({name: _state(name, data, mine) for name in reducers()})
        for name, (reducer, _) in reducers().items():
            given = [state[name] for state in states if state[name] is not None]
            value = reducer.cross_slot_reduce(given)
            expected = _whole(name, data)
            if not np.array_equal(value, expected, equal_nan=True):
                wrong.append(f"{shard.__name__} {name}: {value}, not {expected}")
            values[name] = np.asarray(value).ravel().tolist()
    everywhere = distributed.allgather(values)
    if any(other != values for other in everywhere):
        wrong.append("the workers do not agree")
    return {"wrong": wrong, "values": values}


def _state(name: str, data: dict[str, Any], mine: Indices) -> Any:
    reducer, columns = reducers()[name]
    state = None
    for start in range(0, len(mine), BATCH):
        chosen = mine[start : start + BATCH]
        state = reducer.accumulate({part: data[own][chosen] for part, own in columns.items()})
    return state


def _whole(name: str, data: dict[str, Any]) -> Any:
    reducer, columns = reducers()[name]
    state = reducer.accumulate({part: data[own] for part, own in columns.items()})
    return reducer.cross_slot_reduce([state])


def main(rank: int, size: int) -> None:
    """Join the others and print what was found."""
    with DistributedContext(
        rank=rank, size=size, local_rank=rank, local_size=size, cross_rank=0, cross_size=1
    ) as distributed:
        print(json.dumps(work(distributed)))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
