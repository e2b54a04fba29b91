"""The loader: order, shares, and resuming at any batch."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch
from _data import Drawing

from detcore.errors import DataError
from detcore_torch import DataLoader
from detcore_torch.data.batch_fetcher import make_failed_batch
from detcore_torch.data.data_loader import BatchStream


def stream(
    loader: DataLoader, *, start: int = 0, rank: int = 0, size: int = 1, seed: int = 5
) -> BatchStream:
    order = loader.order(seed=seed, rank=rank, world_size=size)
    batches = BatchStream(loader, order, seed=seed, rank=rank, world_size=size)
    batches.seek(start)
    return batches


def take(given: BatchStream, count: int) -> list[Any]:
    try:
        return [given.take_batch() for _ in range(count)]
    finally:
        given.close()


def values(batches: list[Any]) -> list[Any]:
    return [batch.data.tolist() for batch in batches]


def test_epochs_shuffle_every_record_once() -> None:
    batches = take(stream(DataLoader(Drawing(), 4, shuffle=True)), 6)
    epochs = [np.concatenate([b.records for b in batches[k : k + 3]]).tolist() for k in (0, 3)]
    assert [len(batch.records) for batch in batches] == [4, 4, 2] * 2
    assert [sorted(epoch) for epoch in epochs] == [list(range(10))] * 2
    assert epochs[0] != epochs[1]
    assert [batch.data[:, 0].tolist() for batch in batches] == [
        [float(record) for record in batch.records] for batch in batches
    ]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_resume_mid_epoch_yields_same_batches(num_workers: int) -> None:
    loader = DataLoader(Drawing(), 4, shuffle=True, num_workers=num_workers)
    expected = values(take(stream(DataLoader(Drawing(), 4, shuffle=True)), 8))
    assert values(take(stream(loader), 8)) == expected
    assert values(take(stream(loader, start=5), 3)) == expected[5:]
    sought = stream(loader)
    sought.take_batch()
    sought.seek(4)
    assert values(take(sought, 4)) == expected[4:]


def test_loading_does_not_draw_from_training() -> None:
    torch.manual_seed(1)
    state = torch.get_rng_state(), random.getstate()
    take(stream(DataLoader(Drawing(), 4)), 3)
    take(stream(DataLoader(Drawing(), sampler=torch.utils.data.RandomSampler(range(10)))), 3)
    assert torch.equal(torch.get_rng_state(), state[0])
    assert random.getstate() == state[1]


@pytest.mark.parametrize("size", [2, 3])
def test_workers_take_turns(size: int) -> None:
    loader = DataLoader(Drawing(), 3, shuffle=True)
    alone = values(take(stream(loader), 12))
    shares = [values(take(stream(loader, rank=r, size=size), 12 // size)) for r in range(size)]
    assert [shares[i % size][i // size] for i in range(12)] == alone


def test_sampler_order_is_reproducible_per_epoch() -> None:
    weights = torch.arange(1.0, 11.0)
    loaders = [
        DataLoader(Drawing(), 4, sampler=torch.utils.data.WeightedRandomSampler(weights, 10)),
        DataLoader(
            Drawing(),
            batch_sampler=torch.utils.data.BatchSampler(
                torch.utils.data.RandomSampler(range(10), generator=torch.Generator()), 4, False
            ),
        ),
    ]
    for loader in loaders:
        expected = [list(batch.records) for batch in take(stream(loader), 6)]
        assert [len(records) for records in expected] == [4, 4, 2] * 2
        assert expected[:3] != expected[3:]
        assert [list(b.records) for b in take(stream(loader, start=4), 2)] == expected[4:]
        assert [list(b.records) for b in take(stream(loader, seed=6), 6)] != expected


def test_sampler_of_changing_length_is_rejected() -> None:
    class Shrinking:
        count = 4

        def set_epoch(self, epoch: int) -> None:
            self.count = 4 - epoch

        def __iter__(self) -> Any:
            return iter([[index] for index in range(self.count)])

    arguments = stream(DataLoader(Drawing(), None, batch_sampler=Shrinking()))
    with pytest.raises(DataError, match="yields 3 batches in epoch 1, and 4 in epoch 0"):
        take(arguments, 5)
    with pytest.raises(DataError, match="yields no batch"):
        stream(DataLoader(Drawing(), None, batch_sampler=[]))


def test_irreproducible_sampler_is_rejected() -> None:
    class Remembering:
        def __init__(self) -> None:
            self.rng = np.random.default_rng(0)

        def __iter__(self) -> Any:
            return iter(self.rng.permutation(10).tolist())

    with pytest.raises(
        DataError, match=r"(?s)Remembering.*a different order.*seeded for each epoch"
    ):
        stream(DataLoader(Drawing(), 4, sampler=Remembering()))
    with pytest.raises(DataError, match="record indices that are not integers"):
        stream(DataLoader(Drawing(), batch_sampler=[["a"], ["b"]]))


@pytest.mark.parametrize("num_workers", [0, 1])
def test_dataset_shorter_than_its_length_is_named(num_workers: int) -> None:
    class Short(Drawing):
        def __getitem__(self, index: int) -> Any:
            return [1, 2, 3, 4, 5][index]

    loader = DataLoader(Short(), 4, num_workers=num_workers)
    with pytest.raises(DataError, match=r"(?s)Short.*4, 5, 6, 7.*returns 10.*__len__"):
        take(stream(loader), 2)


def test_loader_process_does_not_use_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> Any:
        raise RuntimeError("Cannot re-initialize CUDA in forked subprocess")

    expected = values(take(stream(DataLoader(Drawing(), 4)), 2))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_rng_state", refuse)
    assert values(take(stream(DataLoader(Drawing(), 4, num_workers=1)), 2)) == expected


def test_getitems_and_collate_fn_are_used() -> None:
    class Together(Drawing):
        def __getitems__(self, indices: list[int]) -> list[int]:
            return [10 * index for index in indices]

    loader = DataLoader(Together(), 4, drop_last=True, collate_fn=tuple)
    assert [batch.data for batch in take(stream(loader), 3)] == [
        (0, 10, 20, 30), (40, 50, 60, 70), (0, 10, 20, 30)
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("error", "kind"), [(ConnectionResetError(104, "reset"), OSError), (KeyError("row"), Exception)]
)
def test_worker_errors_keep_message_and_type(error: Exception, kind: type[Exception]) -> None:
    try:
        raise DataError("the dataset failed") from error
    except DataError as raised:
        message = make_failed_batch(raised)
    assert "DataError" not in message.traceback
    with pytest.raises(DataError, match="the dataset failed") as caught:
        message.to("cpu")
    cause = caught.value.__cause__
    assert isinstance(cause, kind)
    assert isinstance(cause, OSError) is (kind is OSError)
