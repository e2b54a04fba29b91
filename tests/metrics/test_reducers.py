"""Reducers, and metrics merged by weight: the result does not depend on how records were split."""

from __future__ import annotations

import math
import random
import subprocess
import sys
from typing import Any

import pytest

from detcore.errors import MetricError
from detcore.metrics import FunctionReducer, interleave, weighted_mean


@pytest.mark.parametrize("size", range(1, 7))
@pytest.mark.parametrize("count", [0, 1, 2, 5, 12])
def test_interleave_restores_data_order(count: int, size: int) -> None:
    data = list(range(count))
    assert interleave([data[rank::size] for rank in range(size)]) == data


def test_interleave_accepts_uneven_ranks() -> None:
    assert interleave([]) == []
    assert interleave([[], [1, 2, 3], [], [4]]) == [1, 4, 2, 3]


def test_function_reducer_gets_all_batches() -> None:
    ranks = [FunctionReducer(lambda batches: batches) for _ in range(2)]
    states = [ranks[0].accumulate("a"), ranks[1].accumulate("b"), ranks[0].accumulate("c")]
    assert ranks[0].cross_slot_reduce([states[2], states[1]]) == ["a", "b", "c"]
    ranks[0].reset()
    assert ranks[0].accumulate("d") == ["d"]


def test_weighted_mean_of_uneven_shards() -> None:
    # Records 1, 2, 3 on one rank and 4, 5 on the other: their mean is 3, that of the means 3.25.
    merged = weighted_mean([{"loss": 2.0, "a": 1}, {"a": 0, "loss": 4.5}], [3, 2])
    assert merged == {"loss": 3.0, "a": pytest.approx(0.6)}
    assert list(merged) == ["loss", "a"]


def test_weighted_mean_does_not_depend_on_split() -> None:
    generator = random.Random(4)
    data = [generator.uniform(-1e3, 1e3) for _ in range(101)]
    expected = math.fsum(data) / len(data)
    for size in range(1, 12):
        shards = [data[rank::size] for rank in range(size)]
        means = [{"x": math.fsum(shard) / len(shard)} for shard in shards]
        assert weighted_mean(means, [len(s) for s in shards])["x"] == pytest.approx(expected)


def test_mean_of_equal_values_is_exact() -> None:
    assert weighted_mean([{"x": 0.1}] * 3, [3, 3, 1])["x"] == 0.1
    assert weighted_mean([{"x": 7}], [5]) == {"x": 7.0}
    assert weighted_mean([{"x": math.inf}] * 2, [1, 2])["x"] == math.inf


def test_ranks_without_records_are_ignored() -> None:
    assert weighted_mean([{"x": math.nan}, {"x": 2.0}, {}], [0, 4, 0]) == {"x": 2.0}


def test_weighted_mean_propagates_nan_and_inf() -> None:
    assert math.isnan(weighted_mean([{"x": math.nan}, {"x": 2.0}], [1, 4])["x"])
    assert weighted_mean([{"x": -math.inf}, {"x": 2.0}], [1, 4])["x"] == -math.inf
    assert math.isnan(weighted_mean([{"x": -math.inf}, {"x": math.inf}], [1, 4])["x"])


@pytest.mark.parametrize(
    ("metrics", "weights", "match"),
    [
        ([{"x": 1.0}], [1, 2], "1 ranks reported metrics, but there are 2 weights"),
        ([{"x": 1.0}], [-1], "weight of rank 0 is -1"),
        ([{"x": 1.0}], [math.nan], "weight of rank 0 is nan"),
        ([{"x": 1.0}, {"x": 1.0}], [0, 0], "weights of all 2 ranks are 0"),
        ([], [], "weights of all 0 ranks are 0"),
        ([{"x": 1.0}, {"y": 1.0}], [1, 1], r"rank 0 reported \['x'\], but rank 1 reported \['y'\]"),
    ],
)
def test_undefined_means_raise(metrics: Any, weights: Any, match: str) -> None:
    with pytest.raises(MetricError, match=match):
        weighted_mean(metrics, weights)


def test_metrics_package_imports_no_numpy() -> None:
    code = "import sys, detcore.metrics; assert 'numpy' not in sys.modules"
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True)
