"""The searches over the digits example, made smaller by ``--set``."""

from __future__ import annotations

import pytest
from example_runs import run_example
from toy_command import Detcore


@pytest.mark.soak
def test_adaptive_search_trains_best_trial_longest(detcore: Detcore) -> None:
    finished = run_example(
        detcore,
        "digits_keras",
        *("--set", "searcher.max_trials=4", "--set", "searcher.max_length.epochs=4"),
        *("--set", "searcher.bracket_rungs=[2]"),
        file="adaptive.yaml",
    )
    assert finished.code == 0, finished.stdout + finished.stderr
    assert finished.summary["state"] == "COMPLETED"
    trials = finished.summary["trials"]
    lengths = sorted(trial["steps_completed"] for trial in trials)
    assert lengths == [45, 45, 45, 180], "one epoch, and the best of them four"
    best = max(trials, key=lambda trial: float(trial["best_validation"]))
    assert best["steps_completed"] == 180
    assert best["best_validation"] > 0.9


def test_the_grid_has_every_combination(detcore: Detcore) -> None:
    finished = run_example(
        detcore,
        "digits_keras",
        *("--set", "hyperparameters.learning_rate.count=1"),
        *("--set", "searcher.max_length.epochs=1"),
        file="grid.yaml",
    )
    assert finished.code == 0, finished.stdout + finished.stderr
    hparams = [trial["hparams"] for trial in finished.summary["trials"]]
    assert sorted((h["dropout"], h["learning_rate"]) for h in hparams) == [(0, 1e-3), (0.3, 1e-3)]
