"""Loaders of PyTorch's that continue from any position."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import BatchSampler, RandomSampler, WeightedRandomSampler

from detcore.data import DataSource
from detcore.errors import DataError, DetcoreError, InvalidDataTypeError
from detcore_torch import DataLoader, ResumableLoader, resumable

PyTorchLoader = torch.utils.data.DataLoader


class Drawing(torch.utils.data.Dataset):
    """Records that draw from the process-wide generators, and from two that it owns."""

    def __init__(self, count: int = 10) -> None:
        self.count = count
        self.rng = np.random.default_rng()
        self.generator = torch.Generator()

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Any:
        drawn = [random.random(), np.random.rand(), torch.rand(1).item(), self.rng.random()]
        drawn += [torch.rand(1, generator=self.generator).item(), np.random.randn()]
        return torch.tensor([float(index), *drawn], dtype=torch.float64)


def tripled(records: list[Any]) -> Any:
    return torch.stack(records) * 3 + random.random()


def make(num_workers: int = 0, **options: Any) -> ResumableLoader:
    options = {"batch_size": 3, "shuffle": True, "num_workers": num_workers, **options}
    return resumable(PyTorchLoader(Drawing(), **options), seed=5)


def take(loader: Any, count: int) -> list[Any]:
    """Take batches, across epochs."""
    found: list[Any] = []
    while len(found) < count:
        for batch in loader:
            found.append(batch.tolist())
            if len(found) == count:
                break
    return found


LOADERS = {
    "shuffled": {},
    "sequential": {"shuffle": False, "drop_last": True},
    "collated": {"collate_fn": tripled},
    "weighted": {"shuffle": False, "sampler": WeightedRandomSampler([1.0] * 10, 10)},
    "replaced": {"shuffle": False, "sampler": RandomSampler(range(10), replacement=True)},
    "batches": {
        "shuffle": False,
        "batch_size": 1,
        "batch_sampler": BatchSampler(RandomSampler(range(10)), 4, False),
    },
    "unbatched": {"batch_size": None},
    "divided": {
        "shuffle": False,
        "sampler": torch.utils.data.DistributedSampler(range(10), num_replicas=2, rank=1),
    },
}


@pytest.mark.parametrize("kind", LOADERS)
def test_a_loader_continues_anywhere_as_if_it_had_not_stopped(kind: str) -> None:
    options = LOADERS[kind]
    whole = take(make(**options), 9)
    for stop in (0, 1, 3, 4, 7):
        first = make(**options)
        assert take(first, stop) == whole[:stop]
        position = json.loads(json.dumps(first.position()))
        again = make(**options)
        again.seek(position)
        assert take(again, 9 - stop) == whole[stop:]
        first.seek(position)  # the same object as well
        assert take(first, 2) == whole[stop : stop + 2]
