"""What the strategies give is what they promise."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hypothesis import find, given, settings
from hypothesis import strategies as st

from detcore.config import ExperimentConfig, ranges
from detcore.metrics import Mean
from detcore.search import GridSearch, NewTrial, RandomSearch, SearchSetup
from detcore.storage import LocalStorage, check_key
from detcore_testing import file_trees, hyperparameter_spaces, keys, metrics, record_splits


def _with(text: str) -> Callable[[str], bool]:
    return lambda key: text in key


def _reaching(reached: Callable[[float], bool]) -> Callable[[dict[str, float]], bool]:
    return lambda found: any(map(reached, found.values()))


@given(keys(), keys(backslash=False))
def test_keys_are_safe(key: str, plain: str) -> None:
    assert check_key(key) == key
    assert "\\" not in plain


def test_keys_reach_patterns_escapes_and_neighbours() -> None:
    for wanted in ("[1]*?", "100%41", "run-1", "\\"):
        assert find(keys(), _with(wanted))


@settings(deadline=None, max_examples=40)
@given(file_trees())
def test_trees_can_lie_side_by_side(tree: dict[str, bytes]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        storage = LocalStorage(Path(folder) / "root")
        for key, data in tree.items():
            storage.replace(key, data)
        assert {entry.key: storage.read(entry.key) for entry in storage.list()} == tree


def test_metrics_reach_special_numbers_and_nested_names() -> None:
    for reached in (
        math.isnan,
        math.isinf,
        lambda value: value == 0 and math.copysign(1, value) < 0,
    ):
        assert find(metrics(), _reaching(reached))
    assert find(metrics(), lambda found: any("/" in name for name in found))
    assert find(metrics(), lambda found: any("." in name for name in found))


@given(metrics(special=False))
def test_ordinary_metrics_are_finite(found: dict[str, float]) -> None:
    assert found
    assert all(map(math.isfinite, found.values()))


def setup_for(space: dict[str, Any]) -> SearchSetup:
    config = ExperimentConfig.model_validate(
        {
            "name": "space", "entrypoint": "model_def:Trial", "hyperparameters": space,
            "searcher": {
                "name": "random", "metric": "m", "max_length": {"batches": 4}, "max_trials": 2
            },
        }
    )  # fmt: skip
    return SearchSetup(
        settings={"max_trials": 2}, hyperparameters=config.hyperparameters, seed=3, max_length=4
    )


@settings(deadline=None)
@given(hyperparameter_spaces())
def test_spaces_are_those_of_experiment_files(space: dict[str, Any]) -> None:
    (first, second) = RandomSearch(setup_for(space)).start()
    assert isinstance(first, NewTrial)
    assert isinstance(second, NewTrial)
    assert first.hparams.keys() == space.keys()


@settings(deadline=None)
@given(hyperparameter_spaces(grid=True))
def test_grids_have_a_count_everywhere(space: dict[str, Any]) -> None:
    made = GridSearch(setup_for(space))
    assert made.start()
    assert all("count" in r for _, r in ranges(space) if r["type"] in ("int", "double", "log"))


@given(st.data(), st.integers(0, 20), st.booleans())
def test_splits_hold_every_record_once(data: st.DataObject, num: int, may_be_empty: bool) -> None:
    split = data.draw(record_splits(num, may_be_empty=may_be_empty))
    assert sorted(index for part in split for index in part) == list(range(num))
    assert may_be_empty or num == 0 or all(split)


@given(st.data(), st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=12))
def test_a_mean_does_not_depend_on_the_split(data: st.DataObject, values: list[float]) -> None:
    parts = [
        Mean().accumulate({"values": [values[index] for index in part]})
        for part in data.draw(record_splits(len(values)))
    ]
    whole = [Mean().accumulate({"values": values})]
    assert Mean().cross_slot_reduce(parts) == Mean().cross_slot_reduce(whole)
