"""WebDatasets fulfil the data source contract."""

from __future__ import annotations

import functools
import io
import random
import tarfile
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
import webdataset

from detcore.errors import DetcoreError
from detcore_testing import DataSourceSuite
from detcore_torch import ResumableLoader, resumable

# WebDataset does not close a shard whose reader stops early.
pytestmark = pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")

NUM_RECORDS = 10


@functools.cache
def shards() -> list[str]:
    """Return the names of four shards with 3, 3, 3 and 1 records."""
    folder = Path(tempfile.mkdtemp())
    names = [str(folder / f"{index}.tar") for index in range(4)]
    for first, name in enumerate(names):
        with tarfile.open(name, "w") as file:
            for index in range(first * 3, min(first * 3 + 3, NUM_RECORDS)):
                member = tarfile.TarInfo(f"{index:03}.cls")
                text = str(index).encode()
                member.size = len(text)
                file.addfile(member, io.BytesIO(text))
    return names


def noisy(record: Any) -> Any:
    return torch.tensor([record[0], random.random(), torch.rand(1).item()], dtype=torch.float64)


def shuffled_shards(data: Any) -> Any:
    return data.decode().to_tuple("cls").map(noisy)


def shuffled_samples(data: Any) -> Any:
    return data.shuffle(4).decode().to_tuple("cls").map(noisy)


def shuffled_after_decoding(data: Any) -> Any:
    return data.decode().to_tuple("cls").map(noisy).shuffle(4)


def batched(data: Any) -> Any:
    return data.decode().to_tuple("cls").map(noisy).batched(4, collation_fn=torch.stack)


class WebDatasetSuite(DataSourceSuite):
    num_records = NUM_RECORDS
    same_batches = False
    stages: ClassVar[Callable[[Any], Any]]

    def make_source(self, num_workers: int) -> Any:
        stages = type(self).stages
        data = stages(webdataset.WebDataset(shards(), shardshuffle=4))
        size = None if stages is batched else 4
        loader = torch.utils.data.DataLoader(data, size, num_workers=num_workers)
        return resumable(loader, seed=3, record_id=lambda record: record[..., 0])


class TestShuffledShards(WebDatasetSuite):
    stages = staticmethod(shuffled_shards)


class TestShuffledSamples(WebDatasetSuite):
    stages = staticmethod(shuffled_samples)


@pytest.mark.soak
class TestShuffledAfterDecoding(WebDatasetSuite):
    num_workers = (0, 2)
    stages = staticmethod(shuffled_after_decoding)


@pytest.mark.soak
class TestBatches(WebDatasetSuite):
    num_workers = (0, 2)
    stages = staticmethod(batched)


@pytest.mark.soak
class TestShuffledShardsInProcesses(TestShuffledShards):
    num_workers = (0, 2)


@pytest.mark.soak
class TestShuffledSamplesInProcesses(TestShuffledSamples):
    num_workers = (0, 2)


def web_loader(data: Any) -> ResumableLoader:
    instance = resumable(torch.utils.data.DataLoader(data, 2), seed=3)
    assert isinstance(instance, ResumableLoader)
    return instance


def test_resume_rereads_samples_of_one_shard(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "detcore.torch")
    read: list[str] = []

    def note(record: Any) -> Any:
        read.append(record["__key__"])
        return record

    def data() -> Any:
        return webdataset.WebDataset(shards(), shardshuffle=False).map(note).decode()

    first = web_loader(data())
    for _, batch in zip(range(4), first, strict=False):
        assert len(batch["cls"]) == 2
    read.clear()
    again = web_loader(data())
    again.seek(first.position())
    assert next(iter(again))["cls"].tolist() == [8, 9]
    assert read == ["008", "009"]
    assert "process 0 read 2 samples of " in caplog.text
    shuffled = web_loader(data().shuffle(4))
    next(iter(shuffled))
    again = web_loader(data().shuffle(4))
    again.seek(shuffled.position())
    next(iter(again))
    assert "has a shuffle buffer" in caplog.text
    assert "process 0 read 1 batches of " in caplog.text


def test_webdataset_order_differs_per_epoch() -> None:
    data = webdataset.WebDataset(shards(), shardshuffle=4).shuffle(4).decode().to_tuple("cls")
    loader = web_loader(data)
    epochs = [[int(i) for (batch,) in loader for i in batch] for _ in range(2)]
    assert epochs[0] != epochs[1]
    assert sorted(epochs[0]) == sorted(epochs[1]) == list(range(NUM_RECORDS))


def test_inexact_webdatasets_are_rejected() -> None:
    for data, message in (
        (
            webdataset.WebDataset(shards(), resampled=True, shardshuffle=False),
            "draws shards with replacement",
        ),
        (webdataset.WebDataset(shards(), shardshuffle=False).with_epoch(3), "repeats itself"),
    ):
        with pytest.raises(DetcoreError, match=message):
            resumable(torch.utils.data.DataLoader(data, 2))
