"""Loaders and data sets of other libraries keep the contract of a data source."""

from __future__ import annotations

import warnings
from typing import Any

import datasets
import torch
from test_resumable import Drawing

from detcore_testing import DataSourceSuite
from detcore_torch import resumable

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # torchdata calls what PyTorch has deprecated
    from torchdata.stateful_dataloader import StatefulDataLoader

NUM_RECORDS = 10


def table() -> Any:
    return datasets.Dataset.from_dict({"x": list(range(NUM_RECORDS))})


def make_stream(dataset: Any, num_workers: int) -> Any:
    loader = torch.utils.data.DataLoader(dataset.with_format("torch"), 4, num_workers=num_workers)
    return resumable(loader, seed=3, record_id=lambda record: int(record["x"]))


class TestStatefulDataLoader(DataSourceSuite):
    num_records = NUM_RECORDS

    def make_source(self, num_workers: int) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            loader = StatefulDataLoader(Drawing(), 4, shuffle=True, num_workers=num_workers)
        return resumable(loader, seed=3)


class TestTable(DataSourceSuite):
    """Hugging Face's map-style dataset."""

    num_records = NUM_RECORDS

    def make_source(self, num_workers: int) -> Any:
        loader = torch.utils.data.DataLoader(
            table().with_format("torch"), 4, shuffle=True, num_workers=num_workers
        )
        return resumable(loader, seed=3)


class TestIterable(DataSourceSuite):
    """Hugging Face's iterable dataset, which has a state."""

    num_records = NUM_RECORDS
    same_batches = False

    def make_source(self, num_workers: int) -> Any:
        return make_stream(table().to_iterable_dataset(num_shards=2), num_workers)


class TestShuffleBuffer(DataSourceSuite):
    """The same with a shuffle buffer, which its state does not hold."""

    num_records = NUM_RECORDS
    same_batches = False

    def make_source(self, num_workers: int) -> Any:
        dataset = table().to_iterable_dataset(num_shards=2).shuffle(seed=3, buffer_size=4)
        return make_stream(dataset, num_workers)
