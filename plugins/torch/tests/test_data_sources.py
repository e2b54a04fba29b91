"""Wrapped loaders keep the contract of a data source."""

from __future__ import annotations

from typing import Any

import torch
from test_resumable import Drawing, Forgetful, Words

from detcore_testing import DataSourceSuite
from detcore_torch import resumable


class TestIndexed(DataSourceSuite):
    num_records = 10
    num_workers = (0, 2)

    def make_source(self, num_workers: int) -> Any:
        loader = torch.utils.data.DataLoader(
            Drawing(), 4, shuffle=True, num_workers=num_workers, persistent_workers=num_workers > 0
        )
        return resumable(loader, seed=3)


def make_stream(dataset: Any, num_workers: int) -> Any:
    loader = torch.utils.data.DataLoader(dataset, 4, num_workers=num_workers)
    replay = not hasattr(dataset, "state_dict")
    return resumable(loader, seed=3, record_id=lambda record: int(record[0]), replay=replay)


class TestStream(DataSourceSuite):
    num_records = 10
    num_workers = (0, 2)
    same_batches = False  # the dataset divides itself among the workers

    def make_source(self, num_workers: int) -> Any:
        return make_stream(Words(10), num_workers)


class TestReplayed(DataSourceSuite):
    num_records = 10

    def make_source(self, num_workers: int) -> Any:
        return make_stream(Forgetful(10), num_workers)
