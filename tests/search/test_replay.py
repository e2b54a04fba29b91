"""A search is a pure function of its seed and its log."""

from __future__ import annotations

import collections
import json
import random
import sys
import types
from collections.abc import Callable
from typing import Any

import pytest
from search_simulation import SPACE, Simulation, asha, created, setup

from detcore.errors import SearchError
from detcore.search import (
    Event,
    Exited,
    ExitReason,
    Search,
    SearchMethod,
    SearchSetup,
    Train,
    Validated,
    event_from_json,
    event_to_json,
)
from detcore.search.adaptive import AdaptiveSearch
from detcore.search.sampling import sample
from detcore.search.simple_methods import GridSearch, RandomSearch
from detcore_optuna.optuna_search import OptunaSearch, OptunaSettings

FAILING = {ExitReason.ERRORED: 0.05, ExitReason.INVALID_HP: 0.1, ExitReason.STOPPED: 0.02}
GRID = {"rate": {"type": "double", "minval": 0.1, "maxval": 1.0, "count": 50}}
METHODS: dict[str, Callable[[], SearchMethod]] = {
    "random": lambda: RandomSearch(setup(max_trials=40, max_concurrent_trials=4)),
    "grid": lambda: GridSearch(setup(space=GRID, max_concurrent_trials=4)),
    "adaptive_asha": lambda: AdaptiveSearch(asha(max_trials=60, max_rungs=3)),
    "stop_once": lambda: AdaptiveSearch(asha(max_trials=60, max_rungs=3, stop_once=True)),
}
OPTUNA = {
    "TPESampler": "NopPruner",
    "RandomSampler": "MedianPruner",
    "CmaEsSampler": "SuccessiveHalvingPruner",
    "QMCSampler": "HyperbandPruner",
    "NSGAIISampler": "PercentilePruner",
}
ARGUMENTS: dict[str, dict[str, Any]] = {
    "PercentilePruner": {"percentile": 50.0},
    "CmaEsSampler": {"n_startup_trials": 3, "warn_independent_sampling": False},
    "QMCSampler": {"warn_independent_sampling": False, "warn_asynchronous_seeding": False},
}


def optuna_setup(**settings: Any) -> SearchSetup:
    fields = OptunaSettings.model_fields.items()
    defaults = {name: field.default for name, field in fields if not field.is_required()}
    return setup(**{**defaults, **settings})


def optuna_search(sampler: str, max_trials: int = 16) -> OptunaSearch:
    def named(name: str) -> dict[str, Any]:
        return {"name": name, **ARGUMENTS.get(name, {})}

    return OptunaSearch(
        optuna_setup(
            max_trials=max_trials,
            max_concurrent_trials=4,
            sampler=named(sampler),
            pruner=named(OPTUNA[sampler]),
            pruning_period=16,
        )
    )


def assert_same_from(
    method: Callable[[], SearchMethod], complete_log: Simulation, cut: int, log: list[str]
) -> None:
    """Resume from a truncated log, and compare all following decisions."""
    events = [event_from_json(json.loads(line)) for line in log]
    resumed = Search.replay(method(), events[:cut], seed=7)
    following = [resumed.apply(event) for event in events[cut:]]
    assert following == complete_log.operations[cut + 1 :]
    assert resumed.trials == complete_log.search.trials


def logged(simulation: Simulation) -> list[str]:
    return [json.dumps(event_to_json(event)) for event in simulation.search.events]


@pytest.mark.soak
@pytest.mark.parametrize("name", METHODS)
def test_search_resumes_identically_after_kills(name: str) -> None:
    method = METHODS[name]
    choices = random.Random(name)
    for seed in range(25):
        complete_log = Simulation(method, seed=seed, failing=FAILING).run()
        log = logged(complete_log)
        for _ in range(10):
            assert_same_from(method, complete_log, choices.randrange(len(log) + 1), log)


@pytest.mark.soak
@pytest.mark.parametrize("sampler", OPTUNA)
def test_optuna_resumes_identically_after_kill(sampler: str) -> None:
    def method() -> OptunaSearch:
        return optuna_search(sampler)

    complete_log = Simulation(method, seed=1, failing=FAILING).run()
    log = logged(complete_log)
    for cut in random.Random(sampler).sample(range(len(log) + 1), 6):
        assert_same_from(method, complete_log, cut, log)


def test_pruner_stops_trials_early() -> None:
    simulation = Simulation(lambda: optuna_search("RandomSampler", 30)).run()
    lengths = simulation.lengths()
    assert len(lengths) == 30
    assert 64 in lengths
    assert min(lengths) < 64


def test_sampler_learns_from_results() -> None:
    """The mean of the better half of TPE's later trials is below that of random draws."""

    def metric(hparams: object, length: int) -> float:
        return float((hparams["optimizer"]["momentum"] - 0.3) ** 2)  # type: ignore[index]

    results = Simulation(lambda: optuna_search("TPESampler", 60), metric=metric).run()
    samples = Simulation(
        lambda: RandomSearch(setup(max_trials=60, max_concurrent_trials=4)), metric=metric
    ).run()

    def late(simulation: Simulation) -> float:
        values = sorted(metric(t.hparams, 1) for t in simulation.search.trials[30:])
        return sum(values) / len(values)

    assert late(results) < late(samples)


@pytest.mark.parametrize("stop_once", [False, True])
def test_decision_cost_does_not_grow_with_trials(stop_once: bool) -> None:
    one_bracket = asha(
        max_trials=10_000, bracket_rungs=[5], stop_once=stop_once, space={"rate": 0.1}
    )
    search = Search(AdaptiveSearch(one_bracket), seed=7)
    training = collections.deque(entry for entry in search.first if isinstance(entry, Train))
    choices, lines = random.Random(1), 0

    def count(frame: types.FrameType, event: str, arg: object) -> Any:
        nonlocal lines
        lines += 1
        return count

    def report(number: int) -> int:
        """Report metrics of trials, and return the number of Python lines for the last 200."""
        nonlocal lines
        for place in range(number):
            if place == number - 200:
                lines = 0
                sys.settrace(count)
            train = training.popleft()
            event = Validated(train.trial, train.length, choices.random())
            training.extend(entry for entry in search.apply(event) if isinstance(entry, Train))
        sys.settrace(None)
        return lines

    few, many = report(300), report(3000)
    assert len(search.trials) > 1500
    assert many < 1.5 * few


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"sampler": "TPE"}, "unknown searcher.sampler 'TPE'; Optuna has: BruteForceSampler"),
        ({"sampler": "BaseSampler"}, "Optuna has"),
        ({"sampler": {"name": "TPESampler", "seed": 3}}, "has a separate seed"),
        ({"sampler": {"name": "TPESampler", "startup": 3}}, "TPESampler cannot be created"),
        ({"pruner": {}}, "unknown searcher.pruner ''"),
    ],
)
def test_invalid_sampler_is_named(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(SearchError, match=message):
        OptunaSearch(optuna_setup(max_trials=3, **settings))


def test_equal_choices_are_kept_apart_in_optuna() -> None:
    space = {"rate": 1.0, "p": {"type": "categorical", "vals": [1, True, [1, 2], {"a": None}]}}
    new_search = optuna_setup(
        space=space, max_trials=30, max_concurrent_trials=4, sampler="RandomSampler"
    )
    simulation = Simulation(lambda: OptunaSearch(new_search)).run()
    seen_values = {json.dumps(t.hparams["p"]) for t in created(simulation.operations)}
    assert seen_values == {"1", "true", "[1, 2]", '{"a": null}'}


def test_sample_depends_only_on_seed_and_index() -> None:
    turned = {name: SPACE[name] for name in reversed(SPACE)}
    for index in (0, 1, 17, 1000):
        samples = sample(SPACE, seed=7, index=index)
        assert sample(turned, seed=7, index=index) == samples
    # These values are the same on every machine and in every release.
    assert sample(SPACE, seed=7, index=3) == {
        "rate": pytest.approx(0.023789249538583322, rel=1e-12),
        "layers": 2,
        "optimizer": {"kind": "sgd", "momentum": pytest.approx(0.34281685018756514, rel=1e-12)},
        "global_batch_size": 32,
    }


@pytest.mark.parametrize(
    ("events", "message"),
    [
        ([Validated(9, 64, 1.0)], "never created"),
        ([Validated(0, 63, 1.0)], "the requested length was 64"),
        ([Validated(0, 64, float("nan"))], "NaN"),
        ([Validated(0, 64, 1.0), Validated(0, 64, 1.0)], "already closed"),
    ],
)
def test_impossible_events_are_rejected(events: list[Event], message: str) -> None:
    with pytest.raises(SearchError, match=message):
        Search.replay(METHODS["random"](), events, seed=7)


@pytest.mark.parametrize(
    "value", [{}, {"type": "x"}, {"type": "validated", "trial": 0}, {"type": []}]
)
def test_damaged_log_is_rejected(value: dict[str, object]) -> None:
    with pytest.raises(SearchError, match="not an event"):
        event_from_json(value)


def test_events_survive_json() -> None:
    for event in (Validated(3, 10, 0.1 + 0.2), Exited(2, ExitReason.STOPPED)):
        assert event_from_json(json.loads(json.dumps(event_to_json(event)))) == event
