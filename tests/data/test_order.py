"""The computed order: a permutation, well mixed, the same everywhere and forever."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from detcore.data import ShuffledOrder
from detcore.errors import DataError

SIZES = [1, 2, 3, 4, 5, 7, 8, 9, 31, 32, 33, 1000]
# Sizes around the change from sorted hashes to the Feistel network, and powers of two.
LARGE_SIZES = [4095, 4096, 4097, 8191, 8192, 8193, 65535, 65536, 65537, 100_003]
# Quantiles of chi-square at 1 - 1e-6 for the degrees of freedom used below; seeds are fixed, so
# these tests are not flaky: they fail only for a badly mixed order.
CHI2_5, CHI2_23, CHI2_63, CHI2_119 = 35.9, 70.6, 127.4, 202.4


def whole(num_records: int, seed: int = 1, epoch: int = 0) -> np.ndarray:
    return ShuffledOrder(num_records, seed, epoch).take(np.arange(num_records))


def chi_square(counts: np.ndarray, expected: float) -> float:
    return float(((counts - expected) ** 2 / expected).sum())


@pytest.mark.parametrize("num_records", SIZES + LARGE_SIZES)
def test_order_is_a_permutation(num_records: int) -> None:
    assert np.array_equal(np.sort(whole(num_records)), np.arange(num_records))


@settings(max_examples=60, deadline=None)
@given(
    num_records=st.integers(1, 20_000),
    seed=st.integers(-(2**70), 2**70),
    epoch=st.integers(0, 2**40),
)
def test_order_is_a_permutation_for_any_key(num_records: int, seed: int, epoch: int) -> None:
    assert np.array_equal(np.sort(whole(num_records, seed, epoch)), np.arange(num_records))


@settings(max_examples=40, deadline=None)
@given(num_records=st.integers(1, 10**12), data=st.data())
def test_part_equals_slice_of_whole_order(num_records: int, data: st.DataObject) -> None:
    positions = data.draw(st.lists(st.integers(0, num_records - 1), min_size=1, max_size=20))
    order = ShuffledOrder(num_records, 3, 1)
    taken_records = order.take(positions)
    assert taken_records.dtype == np.int64
    assert [order[position] for position in positions] == taken_records.tolist()
    assert len(set(taken_records.tolist())) == len(set(positions))
    assert taken_records.min() >= 0
    assert taken_records.max() < num_records


@pytest.mark.parametrize(("num_records", "limit"), [(3, CHI2_5), (4, CHI2_23), (5, CHI2_119)])
def test_small_permutations_are_equally_likely(num_records: int, limit: float) -> None:
    permutations = {p: i for i, p in enumerate(itertools.permutations(range(num_records)))}
    draws = 100 * len(permutations)
    counts = np.zeros(len(permutations))
    for epoch in range(draws):
        counts[permutations[tuple(whole(num_records, 11, epoch).tolist())]] += 1
    assert chi_square(counts, draws / len(permutations)) < limit


@pytest.mark.parametrize("num_records", [1000, 4097, 65536, 1_000_003])
def test_parts_of_epoch_sample_whole_data(num_records: int) -> None:
    """The first 5 % of the positions, over 64 epochs, hit 64 equal parts of the data evenly."""
    positions = np.arange(num_records // 20)
    counts = np.zeros(64)
    for epoch in range(64):
        records = ShuffledOrder(num_records, 5, epoch).take(positions)
        counts += np.bincount(records * 64 // num_records, minlength=64)
    sizes = np.diff(np.ceil(np.arange(65) * num_records / 64))
    expected = counts.sum() * sizes / num_records
    assert float(((counts - expected) ** 2 / expected).sum()) < CHI2_63


@pytest.mark.parametrize("num_records", [1000, 65536, 1_000_003])
def test_neighbours_are_scattered(num_records: int) -> None:
    """Distances between records at successive positions look like those of two random ones."""
    records = ShuffledOrder(num_records, 9, 2).take(np.arange(min(num_records, 50_000)))
    distances = np.diff(records) % num_records
    counts = np.bincount(distances * 64 // num_records, minlength=64)
    assert chi_square(counts, len(distances) / 64) < CHI2_63 * 1.2  # parts differ by one record


@pytest.mark.parametrize("num_records", [500, 50_000])
def test_epochs_and_seeds_have_different_orders(num_records: int) -> None:
    orders = [whole(num_records, seed, epoch) for seed in (0, 1, -1, 2**64) for epoch in (0, 1, 2)]
    for one, other in itertools.combinations(orders, 2):
        assert (one == other).mean() < 0.02


@pytest.mark.parametrize("change", ["seed", "epoch", "position"])
def test_input_bit_changes_half_of_output_bits(change: str) -> None:
    num_records = 2**40
    positions = np.arange(2000) * 7919
    before = ShuffledOrder(num_records, 1, 0)
    after = ShuffledOrder(num_records, 1 ^ (change == "seed"), int(change == "epoch"))
    moved = positions ^ (1 << 17) if change == "position" else positions
    flipped = before.take(positions) ^ after.take(moved)
    share = np.array([((flipped >> bit) & 1).mean() for bit in range(40)])
    assert np.abs(share - 0.5).max() < 0.06  # five standard errors


def test_order_never_changes() -> None:
    """Checkpoints hold a position, not an order: so a new release must compute the same order."""
    assert whole(10, seed=7, epoch=3).tolist() == GOLDEN_SMALL
    large = ShuffledOrder(10**7, seed=7, epoch=3).take([0, 1, 2, 9_999_999])
    assert large.tolist() == GOLDEN_LARGE
    huge = ShuffledOrder(10**15, seed=-(2**80), epoch=2**33).take([0, 10**15 - 1])
    assert huge.tolist() == GOLDEN_HUGE


GOLDEN_SMALL = [4, 6, 7, 8, 0, 9, 5, 1, 3, 2]
GOLDEN_LARGE = [2559599, 9471444, 1624918, 3071977]
GOLDEN_HUGE = [414263027620805, 899699196931869]


def test_order_uses_no_random_generator() -> None:
    np.random.seed(3)
    before = np.random.get_state()[1].tolist()  # type: ignore[index]
    first = whole(5000)
    assert np.random.get_state()[1].tolist() == before  # type: ignore[index]
    np.random.seed(4)
    assert np.array_equal(whole(5000), first)


def test_take_of_no_positions_is_empty() -> None:
    for num_records in (10, 10_000):
        assert ShuffledOrder(num_records, 0, 0).take([]).tolist() == []


@pytest.mark.parametrize("num_records", [10, 10_000])
def test_positions_outside_epoch_are_rejected(num_records: int) -> None:
    order = ShuffledOrder(num_records, 0, 0)
    with pytest.raises(DataError, match=f"positions 0 to {num_records} are not all inside"):
        order.take([0, num_records])
    with pytest.raises(DataError, match="positions -1 to -1"):
        order[-1]


def test_empty_data_and_negative_epoch_raise() -> None:
    with pytest.raises(DataError, match="cannot order 0 records: the data set is empty"):
        ShuffledOrder(0, 0, 0)
    with pytest.raises(DataError, match="epoch -1 is negative"):
        ShuffledOrder(5, 0, -1)
