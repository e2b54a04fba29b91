"""Sums, means, errors of numbers and quantiles: the same bits for any split of the records."""

from __future__ import annotations

import doctest
import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from metric_splits import assert_same, reduce_split, splits, whole

from detcore.errors import MetricError, MetricTypeError
from detcore.metrics import (
    Count,
    Mean,
    MeanAbsoluteError,
    MeanSquaredError,
    Quantiles,
    RootMeanSquaredError,
    Sum,
    sum_metrics,
)

EXAMPLES = settings(max_examples=60, deadline=None)
ANY_FLOAT = st.floats(allow_nan=False, allow_infinity=False)
NUMBERS = st.floats(-1e6, 1e6)


def exact_sum(values: Any) -> Fraction:
    return sum((Fraction(float(value)) for value in values), Fraction(0))


def as_float(value: Fraction) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


@EXAMPLES
@given(st.data())
def test_sum_and_mean_do_not_depend_on_split(data: st.DataObject) -> None:
    # Up to 1.8e308, so that all partial sums may cancel or overflow.
    values = np.array(data.draw(st.lists(ANY_FLOAT, max_size=12)), dtype=np.float64)
    split = data.draw(splits(len(values)))
    assert reduce_split(Sum(), {"values": values}, split) == as_float(exact_sum(values))
    assert reduce_split(Count(), {"values": values}, split) == len(values)
    mean = reduce_split(Mean(), {"values": values}, split)
    if len(values):
        assert mean == as_float(exact_sum(values) / len(values))
    else:
        assert math.isnan(mean)


@EXAMPLES
@given(st.data())
def test_weighted_mean(data: st.DataObject) -> None:
    weights = ANY_FLOAT.map(abs)
    rows = data.draw(st.lists(st.tuples(ANY_FLOAT, weights), max_size=12))
    array = np.array(rows, dtype=np.float64).reshape(-1, 2)
    parts = {"values": array[:, 0], "weights": array[:, 1]}
    value = reduce_split(Mean(), parts, data.draw(splits(len(rows))))
    assert_same(value, whole(Mean(), parts))
    total = exact_sum(array[:, 1])
    if total == 0:
        assert math.isnan(value)
        return
    assert value == as_float(sum(Fraction(v) * Fraction(w) for v, w in rows) / total)


@EXAMPLES
@given(st.data())
def test_regression_errors(data: st.DataObject) -> None:
    rows = data.draw(st.lists(st.tuples(NUMBERS, NUMBERS, st.integers(0, 3)), max_size=12))
    array = np.array(rows, dtype=np.float64).reshape(-1, 3)
    parts = {"labels": array[:, 0], "predictions": array[:, 1:2], "weights": array[:, 2]}
    split = data.draw(splits(len(rows)))
    total = sum(w for _, _, w in rows)
    if not total:
        assert math.isnan(reduce_split(RootMeanSquaredError(), parts, split))
        return
    differences = [(Fraction(p) - Fraction(label), w) for label, p, w in rows]
    absolute = float(sum(abs(d) * w for d, w in differences) / total)
    squared = float(sum(d * d * w for d, w in differences) / total)
    for reducer, expected in [
        (MeanAbsoluteError(), absolute),
        (MeanSquaredError(), squared),
        (RootMeanSquaredError(), math.sqrt(squared)),
    ]:
        value = reduce_split(reducer, parts, split, as_list=True)
        assert_same(value, whole(reducer, parts))
        assert value == pytest.approx(expected, rel=1e-12, abs=1e-300)


@EXAMPLES
@given(st.data())
def test_quantiles(data: st.DataObject) -> None:
    values = np.array(data.draw(st.lists(NUMBERS, max_size=12)), dtype=np.float64)
    q = data.draw(st.lists(st.floats(0, 1), min_size=1, max_size=3))
    value = reduce_split(Quantiles(q), {"values": values}, data.draw(splits(len(values))))
    assert_same(value, whole(Quantiles(q), {"values": values}))
    assert value.shape == (len(q),)
    assert value.dtype == np.float64
    ordered = sorted(values.tolist())
    for quantiles, part in zip(value, q, strict=True):
        if not ordered:
            assert math.isnan(quantiles)
            continue
        place = part * (len(ordered) - 1)
        low, high = ordered[math.floor(place)], ordered[math.ceil(place)]
        expected = low + (high - low) * (place - math.floor(place))
        scale = max(abs(low), abs(high))
        assert abs(quantiles - expected) <= 1e-12 * scale
        assert low <= quantiles <= high
        assert abs(quantiles - np.quantile(values, part)) <= 1e-12 * scale


def test_sums_keep_what_naive_sums_lose() -> None:
    values = np.random.default_rng(3).lognormal(0, 20, 50_000) * np.tile([1.0, -1.0], 25_000)
    expected = math.fsum(values.tolist())
    for size in (1, 2, 3, 4):
        ranks = [values[rank::size] for rank in range(size)]
        states = [Sum().accumulate(rank) for rank in ranks]
        assert Sum().cross_slot_reduce(states) == expected
    assert whole(Sum(), {"values": [-5e-324, -1e308, 1e308]}) == -5e-324
    assert whole(Mean(), {"values": [0.1] * 7, "weights": [0.3] * 7}) == 0.1


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([1.0, math.nan], math.nan),
        ([1.0, math.inf, 5.0], math.inf),
        ([math.inf, -math.inf], math.nan),
        ([-math.inf, -math.inf], -math.inf),
    ],
)
def test_non_finite_values_propagate(values: list[float], expected: float) -> None:
    reducers: list[Any] = [Sum(), Mean()]
    for reducer in reducers:
        states = [type(reducer)().accumulate(np.array([value])) for value in values]
        assert_same(reducer.cross_slot_reduce(states), expected)
    errors = {"labels": [0.0] * len(values), "predictions": values}
    assert_same(whole(MeanAbsoluteError(), errors), abs(sum(map(abs, values))))


def test_quantiles_of_non_finite_values() -> None:
    assert math.isnan(whole(Quantiles(0.5), {"values": [1.0, math.nan, 2.0]}))
    assert whole(Quantiles(0.5), {"values": [1.0, math.inf, math.inf]}) == math.inf
    assert whole(Quantiles(0.5), {"values": [-math.inf, 3.0, math.inf]}) == 3.0
    assert math.isnan(whole(Quantiles(0.5), {"values": [-math.inf, math.inf]}))
    assert whole(Quantiles(0.5), {"values": [-1.7e308, 1.7e308]}) == 0.0


def test_records_with_weight_0_are_ignored() -> None:
    batch = {"values": np.array([[1.0, 3.0], [math.nan, math.inf]]), "weights": [2, 0]}
    assert whole(Mean(), batch) == 2.0
    assert whole(Mean(), {"values": 3.0, "weights": 32}) == 3.0
    assert math.isnan(whole(Mean(), {"values": [3.0], "weights": [0.0]}))


def test_integer_sums_do_not_overflow() -> None:
    batch = {"labels": np.array([250], np.uint8), "predictions": np.array([255], np.uint8)}
    assert whole(MeanSquaredError(), batch) == 25.0
    batch = {"labels": np.array([255], np.uint8), "predictions": np.array([250], np.uint8)}
    assert whole(MeanAbsoluteError(), batch) == 5.0
    assert whole(Sum(), {"values": np.full(300, 255, np.uint8)}) == 76500.0
    assert whole(Sum(), {"values": np.array([True, False, True])}) == 2.0


def test_huge_errors_become_infinite_silently() -> None:
    batch = {"labels": np.array([-1e308]), "predictions": np.array([1.7e308])}
    assert whole(RootMeanSquaredError(), batch) == math.inf


def test_count_accepts_scalars_and_structures() -> None:
    reducer = Mean()
    states = [reducer.accumulate(np.float32(0.5)), reducer.accumulate([np.ones((2, 1))])]
    assert reducer.cross_slot_reduce(states[-1:]) == 2.5 / 3
    assert whole(Mean(), {"values": (1.0, 2.0)}) == 1.5
    assert reducer.cross_slot_reduce([Mean().accumulate((np.ones(2), np.array([1, 2])))]) == 1.0
    assert whole(Count(), {"a": np.ones((5, 2)), "b": np.ones(5)}) == 5
    assert whole(Quantiles(1), {"values": [4, 7]}) == 7.0


@pytest.mark.parametrize(
    ("reducer", "metric", "match"),
    [
        (Mean(), {"value": [1.0]}, r"a dict with \['value'\].*\n.*'values', 'weights' \(optional"),
        (Mean(), [[1.0]] * 3, "a list of 3"),
        (Mean(), {"values": ["a"]}, "'values' is an array of <U1; it must contain real numbers"),
        (Mean(), {"values": [[1.0], [1.0, 2.0]]}, "'values' is not an array"),
        (Mean(), {"values": [1j]}, "complex128"),
        (Mean(), [[1.0, 2.0], [1.0]], r"'weights' has the shape \(1,\), but 'values' has \(2,\)"),
        (Mean(), [[1.0, 2.0], 8], r"'weights' has the shape \(\)"),
        (Mean(), [[1.0, 2.0], [1.0, -1.0]], "a weight is -1.0"),
        (Mean(), [[1.0, 2.0], [1.0, math.nan]], "a weight is nan"),
        (MeanSquaredError(), np.ones(3), "This reducer accepts a dict of arrays or a list"),
        (MeanSquaredError(), [np.ones(3), np.ones((1, 3))], r"\(3,\), but 'predictions' has \(1"),
        (Count(), [np.ones(3), np.ones(2)], r"the shapes \[\(3,\), \(2,\)\]"),
        (Count(), {}, r"the shapes \[\]"),
    ],
)
def test_invalid_batches_raise(reducer: Any, metric: Any, match: str) -> None:
    with pytest.raises(MetricError, match=match):
        reducer.accumulate(metric)


def test_wrong_types_raise_type_error() -> None:
    with pytest.raises(MetricTypeError, match="datetime64"):
        Sum().accumulate(np.array(["2020-01-01"], dtype="datetime64[D]"))


@pytest.mark.parametrize("q", [1.5, -0.1, math.nan, "half", [[0.5]], [], None])
def test_invalid_quantiles_raise(q: Any) -> None:
    with pytest.raises(MetricError, match="each must be a number from 0 to 1"):
        Quantiles(q)


def test_docstring_examples_run() -> None:
    assert doctest.testmod(sum_metrics) == (0, 2)
