"""The documented arithmetic of single, random, grid and adaptive search."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from search_simulation import SPACE, Simulation, asha, closed, created, setup

from detcore.errors import SearchError
from detcore.search import ExitReason, SearchMethod, SearchSetup
from detcore.search.adaptive import AdaptiveSearch, HalvingSearch, plan_brackets
from detcore.search.halving import rung_lengths
from detcore.search.sampling import get_trial_seed, grid_points, sample
from detcore.search.simple_methods import GridSearch, RandomSearch, SingleSearch


def test_single_uses_the_experiment_seed() -> None:
    simulation = Simulation(lambda: SingleSearch(setup())).run()
    assert simulation.lengths() == [64]
    [trial] = created(simulation.operations)
    assert trial.hparams == sample(SPACE, seed=7, index=0)
    assert trial.seed == get_trial_seed(7, 0)


def test_single_ends_after_invalid_trial() -> None:
    simulation = Simulation(
        lambda: SingleSearch(setup()), failing={ExitReason.INVALID_HP: 1.0}
    ).run()
    assert len(simulation.search.trials) == 1


def test_sampling_methods_draw_same_values() -> None:
    makers: list[Callable[[], SearchMethod]] = [
        lambda: RandomSearch(setup(max_trials=40)),
        lambda: AdaptiveSearch(asha(max_trials=40)),
    ]
    for make in makers:
        simulation = Simulation(make).run()
        samples = [trial.hparams for trial in created(simulation.operations)]
        assert samples == [sample(SPACE, seed=7, index=index) for index in range(40)]
        seeds = [trial.seed for trial in created(simulation.operations)]
        assert seeds == [get_trial_seed(7, index) for index in range(40)]


@pytest.mark.parametrize(("limit", "most"), [(3, 3), (0, 20), (50, 20)])
def test_random_limits_concurrent_trials(limit: int, most: int) -> None:
    answers = setup(max_trials=20, max_concurrent_trials=limit)
    simulation = Simulation(lambda: RandomSearch(answers)).run()
    assert simulation.lengths() == [64] * 20
    assert simulation.most_at_once == most
    assert len({trial.hparams["rate"] for trial in created(simulation.operations)}) == 20


def test_random_replaces_invalid_trials() -> None:
    answers = setup(max_trials=20, max_concurrent_trials=4)
    simulation = Simulation(
        lambda: RandomSearch(answers), failing={ExitReason.INVALID_HP: 0.4}, seed=3
    ).run()
    assert len(closed(simulation.operations)) == 20
    assert len(simulation.search.trials) > 20


def test_random_does_not_replace_failed_trials() -> None:
    answers = setup(max_trials=20, max_concurrent_trials=4)
    simulation = Simulation(
        lambda: RandomSearch(answers), failing={ExitReason.ERRORED: 0.4}, seed=3
    ).run()
    assert len(simulation.search.trials) == 20


def test_search_stops_when_all_trials_are_invalid() -> None:
    answers = setup(max_trials=2, max_concurrent_trials=1)
    simulation = Simulation(lambda: RandomSearch(answers), failing={ExitReason.INVALID_HP: 1.0})
    with pytest.raises(SearchError, match="100 trials in a row rejected"):
        simulation.run()


def test_grid_has_documented_points() -> None:
    space = {
        "b": {"type": "int", "minval": 1, "maxval": 4, "count": 3},
        "a": {"deep": {"type": "double", "minval": 0.0, "maxval": 1.0, "count": 2}},
        "c": {"type": "log", "base": 10.0, "minval": -2.0, "maxval": 0.0, "count": 3},
        "d": {"type": "categorical", "vals": ["x", None]},
        "e": 5,
    }
    points = grid_points(space)
    assert len(points) == 2 * 3 * 3 * 2
    assert points[0] == {"b": 1, "a": {"deep": 0.0}, "c": 0.01, "d": "x", "e": 5}
    assert points[1]["d"] is None  # the last name changes fastest
    assert points[-1] == {"b": 4, "a": {"deep": 1.0}, "c": 1.0, "d": None, "e": 5}
    assert {point["b"] for point in points} == {1, 3, 4}  # 2.5 is rounded


@pytest.mark.parametrize(
    ("value", "points"),
    [
        ({"type": "int", "minval": 1, "maxval": 3, "count": 10}, [1, 2, 3]),
        ({"type": "int", "minval": 0, "maxval": 10, "count": 1}, [5]),
        ({"type": "int", "minval": -5, "maxval": 0, "count": 3}, [-5, -3, 0]),
        ({"type": "double", "minval": 0.0, "maxval": 1.0, "count": 1}, [0.5]),
        ({"type": "log", "base": 2.0, "minval": 1.0, "maxval": 3.0, "count": 2}, [2.0, 8.0]),
        ({"type": "const", "val": [1, 2]}, [[1, 2]]),
    ],
)
def test_grid_points_of_one_axis(value: dict[str, object], points: list[object]) -> None:
    assert [point["p"] for point in grid_points({"p": value})] == points


def test_grid_without_count_names_hyperparameter() -> None:
    with pytest.raises(SearchError, match=r"'g\.rate' has no count"):
        grid_points({"g": {"rate": {"type": "double", "minval": 0.0, "maxval": 1.0}}})


def test_grid_skips_rejected_points() -> None:
    space = {"rate": {"type": "categorical", "vals": [1.0, 2.0, 3.0, 4.0]}}
    answers = setup(space=space, max_concurrent_trials=1)
    simulation = Simulation(lambda: GridSearch(answers)).run()
    assert [t.hparams["rate"] for t in created(simulation.operations)] == [4.0, 3.0, 2.0, 1.0]
    rejected = Simulation(lambda: GridSearch(answers), failing={ExitReason.INVALID_HP: 0.5}, seed=1)
    assert len(rejected.run().search.trials) == 4


@pytest.mark.parametrize(
    ("settings", "max_length", "brackets"),
    [
        ({"max_trials": 100, "max_rungs": 4}, 1024, [(4, 70), (3, 22), (2, 8)]),
        ({"max_trials": 50, "divisor": 3.0, "bracket_rungs": [3, 4]}, 900, [(4, 35), (3, 15)]),
        ({"max_trials": 100, "mode": "aggressive"}, 1024, [(4, 100)]),
        ({"max_trials": 16, "mode": "aggressive"}, 1024, [(3, 16)]),
        ({"max_trials": 1000, "mode": "aggressive"}, 5, [(2, 1000)]),
        ({"max_trials": 1}, 1024, [(1, 1)]),
        ({"max_trials": 4, "mode": "conservative"}, 100, [(2, 3), (1, 1)]),
    ],
)
def test_brackets_of_adaptive_search(
    settings: dict[str, Any], max_length: int, brackets: list[tuple[int, int]]
) -> None:
    plans = plan_brackets(asha(max_length, **settings))
    assert [(plan.num_rungs, plan.max_trials) for plan in plans] == brackets


def test_more_brackets_than_trials_are_rejected() -> None:
    with pytest.raises(SearchError, match="max_trials is 2, but the search has 3 brackets"):
        plan_brackets(asha(max_trials=2, bracket_rungs=[1, 2, 3]))


def test_rung_lengths_are_totals_of_at_least_one() -> None:
    assert rung_lengths(1024, num_rungs=3, divisor=4.0) == [64, 256, 1024]
    assert rung_lengths(10, num_rungs=4, divisor=4.0) == [1, 1, 2, 10]


def test_concurrency_is_divided_over_brackets() -> None:
    plans = plan_brackets(asha(max_trials=100, max_rungs=4, max_concurrent_trials=8))
    assert [plan.max_concurrent_trials for plan in plans] == [3, 3, 2]
    plans = plan_brackets(asha(max_trials=100, max_rungs=4, max_concurrent_trials=0))
    assert [plan.max_concurrent_trials for plan in plans] == [8, 8, 8]


def halving(**settings: Any) -> SearchSetup:
    values: dict[str, Any] = {"max_trials": 16, "num_rungs": 2, "divisor": 4.0, "stop_once": False}
    return setup(64, **{**values, "max_concurrent_trials": 1, **settings})


def by_order(metrics: list[float]) -> list[list[int]]:
    """Report metrics of sequential trials, and return the continued trials after each report."""
    from detcore.search import Search, Train, Validated

    search = Search(HalvingSearch(halving(max_trials=len(metrics))), seed=7)
    gone_on = []
    pending = [op for op in search.first if isinstance(op, Train)]
    while pending:
        train = pending.pop(0)
        operations = search.apply(Validated(train.trial, train.length, metrics[train.trial]))
        pending += [op for op in operations if isinstance(op, Train)]
        if train.length == 16:
            gone_on.append(
                [op.trial for op in operations if isinstance(op, Train) and op.length == 64]
            )
    assert search.is_finished
    return gone_on


def test_new_trial_is_promoted_inside_quota() -> None:
    assert by_order([4.0, 3.0, 2.0, 1.0]) == [[], [], [], [3]]


def test_larger_quota_promotes_waiting_trial() -> None:
    assert by_order([1.0, 2.0, 3.0, 4.0]) == [[], [], [], [0]]
    assert by_order([4.0, 1.0, 3.0, 2.0, 0.5, 0.4, 0.3, 0.2]) == [
        [], [], [], [1], [4], [5], [6], [7],
    ]  # fmt: skip


def test_failed_trial_counts_as_worst() -> None:
    simulation = Simulation(
        lambda: HalvingSearch(halving(max_concurrent_trials=4)),
        failing={ExitReason.ERRORED: 0.7},
        seed=5,
    ).run()
    assert len(simulation.search.trials) == 16


@settings(deadline=None)  # the machine may be under load
@given(
    st.integers(1, 60),
    st.floats(1.5, 6.0),
    st.integers(1, 5),
    st.sampled_from(["conservative", "standard", "aggressive"]),
    st.booleans(),
    st.integers(0, 20),
    st.integers(0, 1000),
    st.dictionaries(st.sampled_from(list(ExitReason)), st.floats(0, 0.3)),
)
def test_adaptive_search_creates_all_trials(
    max_trials: int,
    divisor: float,
    max_rungs: int,
    mode: str,
    stop_once: bool,
    max_concurrent: int,
    seed: int,
    failing: dict[ExitReason, float],
) -> None:
    answers = asha(
        200,
        max_trials=max_trials,
        divisor=divisor,
        max_rungs=max_rungs,
        mode=mode,
        stop_once=stop_once,
        max_concurrent_trials=max_concurrent,
    )
    plans = plan_brackets(answers)
    assert sum(plan.max_trials for plan in plans) == max_trials
    assert all(plan.max_trials >= 1 for plan in plans)
    simulation = Simulation(lambda: AdaptiveSearch(answers), seed=seed, failing=failing).run()
    rejected = sum(
        getattr(event, "reason", None) is ExitReason.INVALID_HP
        for event in simulation.search.events
    )
    counted = len(simulation.search.trials) - rejected
    assert max_trials - rejected <= counted <= max_trials + rejected
    if not failing:
        assert len(simulation.search.trials) == max_trials
        assert math.isclose(simulation.search.progress, 1.0)
        assert max(simulation.lengths()) <= 200
    limit = sum(plan.max_concurrent_trials for plan in plans)
    assert simulation.most_at_once <= limit
