"""The core's search methods and a third-party method pass the suite."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from search_simulation import ASHA, SPACE, setup
from toy_command import TOY_PLUGIN

from detcore.search import SearchSetup
from detcore_testing import SearcherSuite

GRID = {
    "rate": {"type": "double", "minval": 0.1, "maxval": 1.0, "count": 4},
    "layers": {"type": "int", "minval": 1, "maxval": 3, "count": 3},
    "kind": {"type": "categorical", "vals": ["a", None, 1]},
    "fixed": {"type": "const", "val": [1, 2]},
}
_FIXED_LENGTH = "every trial trains to max_length, whatever its metric"


class TestSingle(SearcherSuite):
    searcher = "single"

    def setups(self) -> Sequence[SearchSetup]:
        return [setup(), setup(1, space={"rate": 1.0})]


class TestRandom(SearcherSuite):
    searcher = "random"

    def setups(self) -> Sequence[SearchSetup]:
        return [
            setup(max_trials=20, max_concurrent_trials=4),
            setup(max_trials=7, max_concurrent_trials=0),
            setup(max_trials=1, smaller_is_better=False),
        ]


class TestGrid(SearcherSuite):
    searcher = "grid"
    declined = {"draws": "the grid is fixed"}

    def setups(self) -> Sequence[SearchSetup]:
        return [
            setup(space=GRID, max_concurrent_trials=4, max_trials=36),
            setup(space=GRID, max_trials=36),
        ]


class TestAdaptive(SearcherSuite):
    searcher = "adaptive_asha"

    def setups(self) -> Sequence[SearchSetup]:
        asha = {**ASHA, "max_rungs": 3}
        return [
            setup(256, **{**asha, "max_trials": 30, "max_concurrent_trials": 6}),
            setup(256, **{**asha, "max_trials": 20, "stop_once": True}),
            setup(90, **{**asha, "max_trials": 9, "mode": "aggressive", "divisor": 3.0}),
            setup(90, **{**asha, "max_trials": 9, "mode": "conservative"}),
        ]


class TestHalving(SearcherSuite):
    searcher = "async_halving"

    def setups(self) -> Sequence[SearchSetup]:
        halving: dict[str, Any] = {"num_rungs": 3, "divisor": 4.0, "max_concurrent_trials": 4}
        return [
            setup(64, max_trials=16, stop_once=False, **halving),
            setup(64, max_trials=16, stop_once=True, **halving),
        ]


class TestOptuna(SearcherSuite):
    searcher = "optuna"
    num_examples = 6

    def setups(self) -> Sequence[SearchSetup]:
        return [
            _optuna("TPESampler", "MedianPruner"),
            _optuna("RandomSampler", "NopPruner", smaller_is_better=False),
        ]


def _optuna(sampler: str, pruner: str, **settings: Any) -> SearchSetup:
    return setup(
        max_trials=12, max_concurrent_trials=4, sampler=sampler, pruner=pruner,
        pruning_period=16, space=SPACE, **settings,
    )  # fmt: skip


class TestThirdPartyMethod(SearcherSuite):
    searcher = "doubling"
    declined = {
        "draws": "hyperparameters follow from the trial number",
        "max-length": "each trial is twice as long as the previous trial",
    }

    @pytest.fixture(autouse=True)
    def _installed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.syspath_prepend(TOY_PLUGIN)

    def setups(self) -> Sequence[SearchSetup]:
        space = {
            "rate": {"type": "const", "val": 0.5},
            "width": {"type": "int", "minval": 1, "maxval": 8},
        }
        return [setup(4, space=space, max_trials=5, max_concurrent_trials=1)]
