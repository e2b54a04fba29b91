"""Wrapped loaders fulfil the data source contract, also with data of other libraries."""

from __future__ import annotations

import warnings
from typing import Any

import datasets
import torch
from _data import Drawing, Forgetful, Words

from detcore_testing import DataSourceSuite
from detcore_torch import resumable

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # torchdata calls deprecated PyTorch functions
    from torchdata.stateful_dataloader import StatefulDataLoader

NUM_RECORDS = 10


def table() -> Any:
    return datasets.Dataset.from_dict({"x": list(range(NUM_RECORDS))})


class TestIndexed(DataSourceSuite):
    num_records = NUM_RECORDS
    num_workers = (0, 2)

    def make_source(self, num_workers: int) -> Any:
        loader = torch.utils.data.DataLoader(
            Drawing(), 4, shuffle=True, num_workers=num_workers, persistent_workers=num_workers > 0
        )
        return resumable(loader, seed=3)


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
        data = table().with_format("torch")
        loader = torch.utils.data.DataLoader(data, 4, shuffle=True, num_workers=num_workers)
        return resumable(loader, seed=3)


class StreamSuite(DataSourceSuite):
    num_records = NUM_RECORDS
    same_batches = False  # the dataset divides itself among the workers

    def make_data(self) -> Any:
        raise NotImplementedError

    def identify(self, record: Any) -> int:
        return int(record[0])

    def make_source(self, num_workers: int) -> Any:
        data = self.make_data()
        loader = torch.utils.data.DataLoader(data, 4, num_workers=num_workers)
        replay = not hasattr(data, "state_dict")
        return resumable(loader, seed=3, record_id=self.identify, replay=replay)


class TestStream(StreamSuite):
    num_workers = (0, 2)

    def make_data(self) -> Any:
        return Words(NUM_RECORDS)


class TestReplayed(StreamSuite):
    same_batches = True

    def make_data(self) -> Any:
        return Forgetful(NUM_RECORDS)


class TestIterable(StreamSuite):
    """Hugging Face's iterable dataset, which has a state."""

    def make_data(self) -> Any:
        return table().to_iterable_dataset(num_shards=2).with_format("torch")

    def identify(self, record: Any) -> int:
        return int(record["x"])


class TestShuffleBuffer(TestIterable):
    """The same with a shuffle buffer, which its state does not contain."""

    def make_data(self) -> Any:
        return super().make_data().shuffle(seed=3, buffer_size=4)
