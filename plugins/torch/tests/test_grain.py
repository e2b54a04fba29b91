"""Grain's loaders and data sets fulfil the data source contract."""

from __future__ import annotations

import functools
import importlib
import time
from typing import Any

import pytest

from detcore.errors import DetcoreError
from detcore_testing import DataSourceSuite
from detcore_torch import IteratorSource, resumable


def data_of(kind: str, *arguments: Any) -> Any:
    """Return data of `_grain_data`. Grain is imported here, because the import takes seconds."""
    return getattr(importlib.import_module("_grain_data"), kind)(*arguments)


class GrainSuite(DataSourceSuite):
    num_records = 10
    kind: str

    @pytest.fixture(autouse=True)
    def _import_grain(self) -> None:
        """Import Grain before a test seeds the generators: the import draws numbers."""
        importlib.import_module("_grain_data")

    def make_source(self, num_workers: int) -> Any:
        return resumable(data_of(self.kind, num_workers), record_id=lambda batch: batch[:, 0])


@pytest.mark.soak
class TestMapDataset(GrainSuite):
    kind = "map_dataset"


@pytest.mark.soak
class TestDataLoader(GrainSuite):
    kind = "loader"


@pytest.mark.soak
class TestIterDataset(GrainSuite):
    kind = "filtered"


@pytest.mark.soak
@pytest.mark.timeout(1800)  # each process imports Grain
class TestProcesses(GrainSuite):
    kind = "of_processes"
    num_workers = (2,)


@pytest.mark.soak
@pytest.mark.timeout(1800)  # each process imports Grain
class TestDataLoaderWithProcesses(GrainSuite):
    kind = "loader"
    num_workers = (2,)


@pytest.mark.soak
class TestDataOfEachEpoch(DataSourceSuite):
    """A new order per epoch, and any number of threads."""

    num_records = 10
    num_workers = (1, 4)

    def make_source(self, num_workers: int) -> Any:
        data = functools.partial(data_of, "of_threads", num_workers)
        return IteratorSource(data, record_ids=lambda batch: batch[:, 0])


def test_position_of_other_data_is_rejected() -> None:
    source = resumable(data_of("loader", 0))
    next(iter(source))
    with pytest.raises(DetcoreError, match=r"(?s)does not fit the data: .*Worker count.*number of"):
        resumable(data_of("loader", 2)).seek(source.position())
    with pytest.raises(DetcoreError, match="saved by a DataLoaderIterator, and the data has a Pre"):
        resumable(data_of("map_dataset", 0)).seek(source.position())
    processes = resumable(data_of("of_processes", 2))
    values = iter(data_of("of_processes", 3)).get_state()
    position = {**processes.position(), "batch": 1, "state": {"values": values}}
    with pytest.raises(DetcoreError, match=r"(?s)does not fit the data: .*number of worker"):
        processes.seek(position)


def test_seek_to_batch_one_million_is_immediate() -> None:
    source = resumable(data_of("loader", 0, 50_000_000))
    next(iter(source))
    position = source.position()
    state = position["state"]
    assert isinstance(state, dict)
    text = str(state["text"]).replace('"0": 3', '"0": 3999999')
    began = time.process_time()
    source.seek({**position, "batch": 1_000_000, "state": {"text": text}})
    assert len(next(iter(source))) == 4
    assert time.process_time() - began < 1


def test_arguments_that_grain_defines_are_rejected() -> None:
    with pytest.raises(DetcoreError, match="which has seeds and a state"):
        resumable(data_of("map_dataset", 0), seed=1)
