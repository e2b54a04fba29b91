"""Small data sets that draw random numbers, with and without indices."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch


class Drawing(torch.utils.data.Dataset):
    """Records that draw from the process-wide generators and from two own generators."""

    def __init__(self, count: int = 10) -> None:
        self.count = count
        self.rng = np.random.default_rng()
        self.generator = torch.Generator()

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Any:
        numbers = [random.random(), np.random.rand(), torch.rand(1).item(), self.rng.random()]
        numbers += [torch.rand(1, generator=self.generator).item(), np.random.randn()]
        return torch.tensor([float(index), *numbers], dtype=torch.float64)


class Words(torch.utils.data.IterableDataset):
    """Noisy numbers in a new order per epoch, divided among workers."""

    def __init__(self, count: int = 20) -> None:
        self.count = count
        self.epochs = self.at = 0

    def __iter__(self) -> Iterator[Any]:
        info = torch.utils.data.get_worker_info()
        order = random.Random(self.epochs).sample(range(self.count), self.count)
        if info is not None:
            order = order[info.id :: info.num_workers]
        while self.at < len(order):
            self.at += 1
            yield torch.tensor([order[self.at - 1], random.random()], dtype=torch.float64)
        self.at = 0
        self.epochs += 1

    def state_dict(self) -> dict[str, Any]:
        return {"at": (self.epochs, self.at), "memory": torch.tensor([self.at])}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.epochs, self.at = state["at"]
        assert state["memory"].item() == self.at


class Forgetful(torch.utils.data.IterableDataset):
    """Records in an order that follows from the seed, without a state."""

    def __init__(self, count: int = 20) -> None:
        self.count = count

    def __iter__(self) -> Iterator[Any]:
        for index in range(self.count):
            yield torch.tensor([index, random.random()], dtype=torch.float64)
