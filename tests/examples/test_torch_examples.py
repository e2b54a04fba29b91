"""The examples in PyTorch, run as a user runs them: ``detcore run``, and the model loaded."""

from __future__ import annotations

from pathlib import Path

import pytest
from example_runs import check_digits, checkpoint_of, run_example, run_script
from toy_command import Detcore


@pytest.mark.parametrize("slots", [1, 2])
def test_digits_reach_97_percent_in_a_minute(detcore: Detcore, slots: int) -> None:
    finished = check_digits(detcore, "digits_torch", "--slots", str(slots))
    if slots == 1:
        check_that_it_predicts(checkpoint_of(detcore, finished))


def check_that_it_predicts(folder: Path) -> None:
    script = """
import sys, detcore_torch, torch
from sklearn.datasets import load_digits
model = detcore_torch.load_model_from_checkpoint_path(sys.argv[1])
digits = load_digits()
images = torch.tensor(digits.images / 16, dtype=torch.float32).unsqueeze(1)
answers = model(images).argmax(1).numpy()
print((answers == digits.target).mean())
"""
    assert float(run_script(script, folder)) > 0.9
    assert not list(folder.rglob("__pycache__"))


@pytest.mark.soak
def test_search_finds_good_hyperparameters(detcore: Detcore) -> None:
    finished = run_example(detcore, "digits_torch", file="adaptive.yaml")
    assert finished.code == 0, finished.stderr
    assert len(finished.summary["trials"]) == 16
    best = max(trial["best_validation"] or 0 for trial in finished.summary["trials"])
    assert best >= 0.97


@pytest.mark.soak
def test_language_model_beats_character_frequencies(detcore: Detcore) -> None:
    finished = run_example(detcore, "language_torch")
    assert finished.code == 0, finished.stderr
    (trial,) = finished.summary["trials"]
    # How often each character comes gives 4.7 bits.
    assert trial["best_validation"] < 3.2


@pytest.mark.soak
def test_search_sets_transformers_arguments(
    detcore: Detcore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    finished = run_example(
        detcore,
        "trainer_torch",
        entrypoint="python3 train.py --max_train_samples=640 --max_eval_samples=64 "
        f"--output_dir={detcore.tmp_path / 'output'}",
        hyperparameters={
            "learning_rate": {"type": "categorical", "vals": [1e-3, 4e-3]},
            "warmup_steps": 0,
            "per_device_train_batch_size": 8,
            "lr_scheduler_type": "constant",
            "width": 32,
            "num_layers": 1,
        },
        searcher={"name": "grid", "metric": "eval_loss", "max_length": {"epochs": 1}},
        scheduling_unit=10,
    )
    assert finished.code == 0, finished.stderr
    assert len(finished.summary["trials"]) == 2
    with detcore.database() as database:
        for trial in database.list_trials(1):
            reports = database.metrics(trial.id, "training")
            assert [each.steps_completed for each in reports] == [10, 20, 30, 40]
            rates = {each.metrics["learning_rate"] for each in reports}
            assert rates == {trial.hparams["learning_rate"]}
            assert {"width": 32, "num_layers": 1}.items() <= trial.hparams.items()


@pytest.mark.soak
@pytest.mark.parametrize("example", ["lightning_torch", "accelerate_torch"])
def test_a_search_stops_and_continues_scripts(detcore: Detcore, example: str) -> None:
    finished = run_example(
        detcore,
        example,
        hyperparameters={"learning_rate": {"type": "log", "minval": -4, "maxval": -2, "base": 10}},
        searcher={
            "name": "adaptive_asha",
            "metric": "val_loss",
            "max_length": {"batches": 64},  # a rung is no end of an epoch, which has 45 batches
            "max_trials": 4,
        },
        scheduling_unit=8,
        min_validation_period={"batches": 0},
        min_checkpoint_period={"batches": 0},
        perform_initial_validation=True,
    )
    assert finished.code == 0, finished.stderr
    with detcore.database() as database:
        trials = database.list_trials(1)
        assert len({trial.hparams["learning_rate"] for trial in trials}) == 4
        reached = [database.metrics(trial.id, "training")[-1].steps_completed for trial in trials]
        for trial in trials:
            assert database.metrics(trial.id, "validation")[0].steps_completed == 0
    assert max(reached) == 64
    assert min(reached) < 64
