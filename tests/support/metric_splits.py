"""Metrics of records that are split over ranks and batches."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any

import numpy as np
from hypothesis import strategies as st

from detcore.metrics import MetricReducer


@dataclasses.dataclass(frozen=True)
class Split:
    """Batch k contains records ``cuts[k]`` to ``cuts[k + 1]`` on rank ``owners[k]``."""

    cuts: tuple[int, ...]
    owners: tuple[int, ...]
    num_ranks: int


@st.composite
def splits(draw: st.DrawFn, num_records: int) -> Split:
    """Draw a split over 1 to 4 ranks. Ranks and batches may be empty."""
    num_ranks = draw(st.integers(1, 4))
    inner = sorted(draw(st.lists(st.integers(0, num_records), max_size=6)))
    cuts = (0, *inner, num_records)
    owners = [draw(st.integers(0, num_ranks - 1)) for _ in cuts[1:]]
    return Split(cuts, tuple(owners), num_ranks)


def reduce_split(
    reducer: MetricReducer, parts: dict[str, Any], split: Split, *, as_list: bool = False
) -> Any:
    """Compute a metric like a training job, with a copy of the metric on each rank.

    Also checks that reducers keep copies and that a reset clears the state.
    """
    ranks: list[Any] = [copy.deepcopy(reducer) for _ in range(split.num_ranks)]

    def accumulate() -> list[Any]:
        states: dict[int, Any] = {}
        for owner, start, end in zip(split.owners, split.cuts, split.cuts[1:], strict=False):
            batch = {name: part[start:end].copy() for name, part in parts.items()}
            states[owner] = ranks[owner].accumulate(list(batch.values()) if as_list else batch)
            for part in batch.values():
                part[:] = 0  # the next batch may reuse the memory
        return [states[rank] for rank in sorted(states)]  # ranks without batches are omitted

    first = accumulate()
    for state in first:
        assert_plain(state)
    copies = copy.deepcopy(first)
    value = ranks[0].cross_slot_reduce(first)
    assert_same(ranks[-1].cross_slot_reduce(copies), value)  # any rank can reduce
    assert_same(ranks[0].cross_slot_reduce(first), value)
    for rank in ranks:
        rank.reset()
    assert_same(ranks[0].cross_slot_reduce(accumulate()), value)
    return value


def whole(reducer: MetricReducer, parts: dict[str, Any]) -> Any:
    """Compute the value from one batch with all records."""
    fresh = copy.deepcopy(reducer)
    return fresh.cross_slot_reduce([fresh.accumulate(parts)])


def assert_same(value: Any, expected: Any) -> None:
    """Check for equal bits, except for kinds of NaN and zero."""
    assert type(value) is type(expected)
    np.testing.assert_array_equal(value, expected)


def assert_plain(state: Any) -> None:
    """Check that a state consists of numbers, lists, tuples and arrays."""
    if type(state) in (list, tuple):
        for part in state:
            assert_plain(part)
    elif type(state) is np.ndarray:
        assert state.dtype.kind in "biuf"
    else:
        assert type(state) in (int, float)
