"""Records split over ranks and batches in any way, and reduced."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any

import numpy as np
from hypothesis import strategies as st

from detcore.metrics import MetricReducer


@dataclasses.dataclass(frozen=True)
class Split:
    """Batch k is records ``cuts[k]`` to ``cuts[k + 1]``, on rank ``owners[k]``; may be empty."""

    cuts: tuple[int, ...]
    owners: tuple[int, ...]
    num_ranks: int


@st.composite
def splits(draw: st.DrawFn, num_records: int) -> Split:
    """Draw a split over 1 to 4 ranks; ranks and batches without records occur."""
    num_ranks = draw(st.integers(1, 4))
    inner = sorted(draw(st.lists(st.integers(0, num_records), max_size=6)))
    cuts = (0, *inner, num_records)
    owners = [draw(st.integers(0, num_ranks - 1)) for _ in cuts[1:]]
    return Split(cuts, tuple(owners), num_ranks)


def reduce_split(
    reducer: MetricReducer, parts: dict[str, Any], split: Split, *, as_list: bool = False
) -> Any:
    """Return the value of a metric, computed as a training job does: a copy for each rank.

    Also checks that reducers keep copies, and that a reset forgets everything.
    """
    ranks: list[Any] = [copy.deepcopy(reducer) for _ in range(split.num_ranks)]

    def accumulate() -> list[Any]:
        states: dict[int, Any] = {}
        for owner, start, end in zip(split.owners, split.cuts, split.cuts[1:], strict=False):
            batch = {name: part[start:end].copy() for name, part in parts.items()}
            states[owner] = ranks[owner].accumulate(list(batch.values()) if as_list else batch)
            for part in batch.values():
                part[:] = 0  # the next batch may use the same memory
        return [states[rank] for rank in sorted(states)]  # a rank without a batch is not in it

    given = accumulate()
    for state in given:
        assert_plain(state)
    kept = copy.deepcopy(given)
    value = ranks[0].cross_slot_reduce(given)
    assert_same(ranks[-1].cross_slot_reduce(kept), value)  # any rank reduces, and changes no state
    assert_same(ranks[0].cross_slot_reduce(given), value)
    for rank in ranks:
        rank.reset()
    assert_same(ranks[0].cross_slot_reduce(accumulate()), value)
    return value


def whole(reducer: MetricReducer, parts: dict[str, Any]) -> Any:
    """Return the value from one batch with all records."""
    fresh = copy.deepcopy(reducer)
    return fresh.cross_slot_reduce([fresh.accumulate(parts)])


def assert_same(value: Any, expected: Any) -> None:
    """The same bits, but for the kind of NaN and of zero."""
    assert type(value) is type(expected)
    np.testing.assert_array_equal(value, expected)


def assert_plain(state: Any) -> None:
    """A state is built of numbers, lists, tuples and arrays: no class of ours travels."""
    if type(state) in (list, tuple):
        for part in state:
            assert_plain(part)
    elif type(state) is np.ndarray:
        assert state.dtype.kind in "biuf"
    else:
        assert type(state) in (int, float)
