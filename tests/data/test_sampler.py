"""Batches of record indices: shards, positions, strides over ranks, random access."""

from __future__ import annotations

import doctest

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from detcore.data import IndexSampler, ShuffledOrder, index_sampler, shard_range, shuffled_order
from detcore.errors import DataError, ShardError

# -- shards ---------------------------------------------------------------------------------------


@given(num_records=st.integers(0, 10_000), world_size=st.integers(1, 64))
def test_shards_are_disjoint_complete_and_even(num_records: int, world_size: int) -> None:
    shards = [
        shard_range(num_records, rank=rank, world_size=world_size) for rank in range(world_size)
    ]
    assert [record for shard in shards for record in shard] == list(range(num_records))
    sizes = [len(shard) for shard in shards]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] - sizes[-1] <= 1


@pytest.mark.parametrize(("rank", "world_size"), [(-1, 2), (2, 2), (0, 0)])
def test_rank_outside_world_size_is_rejected(rank: int, world_size: int) -> None:
    with pytest.raises(ShardError, match=f"rank {rank} is not one of {world_size} workers"):
        shard_range(10, rank=rank, world_size=world_size)
    with pytest.raises(ShardError, match=f"rank {rank} is not one of {world_size} workers"):
        IndexSampler(10, 2, shuffle=True, seed=0, rank=rank, world_size=world_size)


# -- batches --------------------------------------------------------------------------------------

samplers = st.integers(1, 200).flatmap(
    lambda num_records: st.builds(
        IndexSampler,
        st.just(num_records),
        st.integers(1, num_records),
        shuffle=st.booleans(),
        seed=st.integers(0, 5),
        drop_last=st.booleans(),
    )
)


@given(sampler=samplers, epochs=st.integers(1, 3))
def test_each_epoch_uses_each_record_once(sampler: IndexSampler, epochs: int) -> None:
    size = sampler.batches_per_epoch
    seen_records = []
    for epoch in range(epochs):
        batches = [sampler.batch(epoch * size + cursor) for cursor in range(size)]
        records = np.concatenate(batches)
        assert len(set(records.tolist())) == len(records) == sampler.num_records - sampler.left_over
        assert all(len(batch) == sampler.batch_size for batch in batches[:-1])
        seen_records.append(records.tolist())
    if not sampler.shuffle:
        assert all(records == list(range(len(records))) for records in seen_records)


@given(
    sampler=samplers,
    world_size=st.integers(1, 5),
    start=st.integers(0, 500),
    count=st.integers(0, 20),
)
def test_ranks_stride_through_one_stream(
    sampler: IndexSampler, world_size: int, start: int, count: int
) -> None:
    for rank in range(world_size):
        own_shard = IndexSampler(
            sampler.num_records,
            sampler.batch_size,
            shuffle=sampler.shuffle,
            seed=sampler.seed,
            rank=rank,
            world_size=world_size,
            drop_last=sampler.drop_last,
        )
        got = own_shard.batches(start, start + count)
        assert len(got) == count
        for index, batch in enumerate(got, start):
            assert np.array_equal(batch, sampler.batch(rank + index * world_size))
            assert np.array_equal(batch, own_shard.batch(index))


def test_batches_continue_across_epochs() -> None:
    """Ten batches, three ranks: rank 0 takes 0, 3, 6, 9, then 2, 5, 8, then 1, 4, 7."""
    sampler = IndexSampler(10, 1, shuffle=False, seed=0, rank=0, world_size=3)
    taken_records = [int(batch[0]) for batch in sampler.batches(0, 10)]
    assert taken_records == [0, 3, 6, 9, 2, 5, 8, 1, 4, 7]
    assert [sampler.epoch(i) for i in range(10)] == [0, 0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert sampler.joined_batches(0, 10)[2].tolist() == [0, 0, 0, 0, 1, 1, 1, 2, 2, 2]


def test_shuffled_epochs_differ() -> None:
    sampler = IndexSampler(100, 10, shuffle=True, seed=3)
    first, second = (np.concatenate(sampler.batches(e * 10, e * 10 + 10)) for e in (0, 1))
    assert not np.array_equal(first, second)
    assert np.array_equal(first, ShuffledOrder(100, 3, 0).take(np.arange(100)))


@pytest.mark.parametrize("num_records", [60_000, 1_500])
def test_cost_of_batch_does_not_depend_on_index(
    num_records: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counts the computed positions: the work does not depend on the batch index."""
    computed: list[int] = []
    take = ShuffledOrder.take

    def counting(order: ShuffledOrder, positions: np.ndarray) -> np.ndarray:
        computed.append(len(positions))
        return take(order, positions)

    monkeypatch.setattr(ShuffledOrder, "take", counting)
    for batch_index in (0, 1_000_000, 10**15):
        sampler = IndexSampler(num_records, 32, shuffle=True, seed=1)
        assert len(sampler.batch(batch_index)) in (32, num_records % 32)
    assert len(computed) == 3
    assert max(computed) <= 32


def test_negative_batch_is_rejected() -> None:
    with pytest.raises(DataError, match="batch -1 is negative"):
        IndexSampler(10, 2, shuffle=False, seed=0).batch(-1)


# -- bad input ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("num_records", "batch_size", "message"),
    [
        (0, 1, r"the data set has 0 records\.\n.*\nPass training data"),
        (5, 0, "a batch of 0 records is impossible"),
        (5, 6, r"a batch of 6 records is larger than the data set of 5\.\n.*\nLower hyperparam"),
    ],
)
def test_impossible_batch_sizes_are_rejected(
    num_records: int, batch_size: int, message: str
) -> None:
    with pytest.raises(DataError, match=message):
        IndexSampler(num_records, batch_size, shuffle=True, seed=0)


@pytest.mark.parametrize("module", [shuffled_order, index_sampler])
def test_docstring_examples_run(module: object) -> None:
    result = doctest.testmod(module)  # type: ignore[arg-type]
    assert result.attempted > 0
    assert result.failed == 0
