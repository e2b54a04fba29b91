"""Hypothesis strategies for the values that plugins receive."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st

from detcore.storage import is_safe_key

_PARTS = ("1", "10", "run", "run-1", ".hidden", "a b", "[1]*?", "100%41", "weights.bin", "~", "#")
_NAMES = ("learning_rate", "layers", "dropout", "optimizer", "x", "a b", "units_1", "global")
_MOST_EXACT = 2**53


def keys(
    *, max_parts: int = 3, max_part_size: int = 8, backslash: bool = True
) -> st.SearchStrategy[str]:
    """Return safe storage keys: ordinary ones, and ones that look like patterns or escapes.

    Args:
        max_parts: Most parts between slashes; >= 1.
        max_part_size: Most characters of a part; >= 1.
        backslash: Whether keys may hold backslashes, which some stores take for slashes.
    """
    text = st.text(
        st.characters(
            codec="utf-8",
            exclude_categories=["Cc", "Cs"],
            exclude_characters="/" if backslash else "/\\",
        ),
        min_size=1,
        max_size=max_part_size,
    )
    parts = st.lists(st.sampled_from(_PARTS) | text, min_size=1, max_size=max_parts)
    return parts.map("/".join).filter(is_safe_key)


@st.composite
def file_trees(
    draw: st.DrawFn, *, max_files: int = 6, max_size: int = 200, backslash: bool = True
) -> dict[str, bytes]:
    """Return files by key that can lie side by side: none is the folder of another.

    Args:
        draw: Hypothesis's own.
        max_files: Most files; there may be none.
        max_size: Most bytes of a file.
        backslash: Whether keys may hold backslashes.
    """
    found = draw(st.dictionaries(keys(backslash=backslash), st.binary(max_size=max_size),
                                 max_size=max_files))  # fmt: skip
    folders = {"/".join(parts) for parts in itertools.chain.from_iterable(map(_folders, found))}
    tree: dict[str, bytes] = {}
    folded: set[str] = set()
    for key, data in found.items():
        # Names that differ by case are one file on some machines.
        if key not in folders and key.casefold() not in folded:
            folded.add(key.casefold())
            tree[key] = data
    return tree


def _folders(key: str) -> list[list[str]]:
    parts = key.split("/")
    return [parts[:count] for count in range(1, len(parts))]


def metrics(*, special: bool = True, max_metrics: int = 5) -> st.SearchStrategy[dict[str, float]]:
    """Return metrics by name, as trials report them; names may look nested or strange.

    Args:
        special: Whether values may be NaN, infinite, subnormal or -0.0.
        max_metrics: Most metrics; there is at least one.
    """
    name = st.sampled_from(
        ["loss", "val_loss", "accuracy", "group/loss", "group.accuracy", "a b", "\u00fc", "top-5"]
    )
    values = st.floats(allow_nan=special, allow_infinity=special) | st.integers(
        -_MOST_EXACT, _MOST_EXACT
    ).map(float)
    if special:
        values |= st.sampled_from(
            [float("nan"), float("inf"), float("-inf"), -0.0, 5e-324, 1.7976931348623157e308]
        )
    return st.dictionaries(name, values, min_size=1, max_size=max_metrics)


def _ranges(grid: bool) -> st.SearchStrategy[dict[str, Any]]:
    low = st.integers(-20, 20)
    width = st.integers(1, 50)
    count = st.integers(1, 4) if grid else st.none() | st.integers(1, 4)

    def int_range(low: int, width: int, count: int | None) -> dict[str, Any]:
        return _with_count({"type": "int", "minval": low, "maxval": low + width}, count)

    def double(low: int, width: int, count: int | None) -> dict[str, Any]:
        made = {"type": "double", "minval": low / 4, "maxval": (low + width + 1) / 4}
        return _with_count(made, count)

    def log(low: int, width: int, count: int | None) -> dict[str, Any]:
        made = {"type": "log", "base": 10.0, "minval": low / 4, "maxval": (low + width + 1) / 4}
        return _with_count(made, count)

    choice = st.none() | st.booleans() | st.integers(-5, 5) | st.sampled_from(["sgd", "adam", ""])
    return st.one_of(
        st.builds(int_range, low, width, count),
        st.builds(double, low, width, count),
        st.builds(log, low, st.integers(0, 12), count),
        st.lists(choice, min_size=1, max_size=4).map(
            lambda values: {"type": "categorical", "vals": values}
        ),
        choice.map(lambda value: {"type": "const", "val": value}),
    )


def _with_count(made: dict[str, Any], count: int | None) -> dict[str, Any]:
    return made if count is None else {**made, "count": count}


def hyperparameter_spaces(*, grid: bool = False) -> st.SearchStrategy[dict[str, Any]]:
    """Return ``hyperparameters`` of experiment files: ranges of each type, constants and groups.

    Args:
        grid: Whether every range has a ``count``, as a grid needs.
    """
    name = st.sampled_from(_NAMES)
    leaf = _ranges(grid) | st.integers(-5, 5) | st.sampled_from(["text", None, True, 0.5])
    group = st.dictionaries(name, leaf, max_size=3)
    return st.dictionaries(name, leaf | group, max_size=3).map(
        lambda space: {**space, "global_batch_size": 32}
    )


@st.composite
def record_splits(
    draw: st.DrawFn, num_records: int, *, max_ranks: int = 5, may_be_empty: bool = True
) -> Sequence[Sequence[int]]:
    """Return the indices of records, split over ranks; each record is in one part.

    Args:
        draw: Hypothesis's own.
        num_records: How many there are; >= 0.
        max_ranks: Most ranks; there is at least one.
        may_be_empty: Whether a rank may have no records.
    """
    num_ranks = draw(st.integers(1, max_ranks))
    order = draw(st.permutations(range(num_records)))
    if may_be_empty:
        cuts = sorted(draw(st.lists(st.integers(0, num_records), min_size=num_ranks - 1,
                                    max_size=num_ranks - 1)))  # fmt: skip
    else:
        num_ranks = max(1, min(num_ranks, num_records))
        cuts = sorted(draw(st.lists(st.integers(1, max(1, num_records - 1)), unique=True,
                                    min_size=num_ranks - 1, max_size=num_ranks - 1)))  # fmt: skip
    edges = [0, *cuts, num_records]
    return [list(order[low:high]) for low, high in itertools.pairwise(edges)]
