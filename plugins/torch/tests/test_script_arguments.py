"""Scripts that are restarted with other library arguments, after `kill -9`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from loop_runs import LoopRuns

EXAMPLE = Path(__file__).parents[3] / "examples" / "trainer_torch" / "train.py"
SCRIPTS = Path(__file__).parent / "scripts"


@pytest.fixture
def runs(tmp_path: Path) -> Iterator[LoopRuns]:
    with LoopRuns(tmp_path) as runs:
        runs.storage = runs.home / "checkpoints"
        yield runs


def find_error(runs: LoopRuns, *command: object) -> str:
    process = runs.start(*command)
    error = process.communicate(timeout=240)[1]
    assert process.returncode == 1, error
    return error


@pytest.mark.timeout(300)
def test_training_arguments_distinguish_runs(runs: LoopRuns, tmp_path: Path) -> None:
    command: list[Any] = [
        *("python3", EXAMPLE, "--max_train_samples=70", "--max_eval_samples=16", "--use_cpu"),
        *("--per_device_train_batch_size=4", "--eval_steps=6", "--save_steps=2"),
        f"--output_dir={tmp_path / 'output'}",
    ]
    runs.kill_after_checkpoint(*command, "--max_steps=400", "--learning_rate=0.05")

    error = find_error(
        runs, *command, "--max_steps=400", "--learning_rate=0.001", "--label_smoothing_factor=0.1"
    )
    assert "experiment 1 of this script did not finish" in error
    assert "learning_rate is 0.001 instead of 0.05" in error
    assert "label_smoothing_factor is 0.1 instead of 0.0" in error
    assert error.count("instead of") == 2
    assert "detcore experiment archive 1" in error

    steps = runs.newest()[0] + 6
    runs.run(
        *command, f"--max_steps={steps}", "--learning_rate=0.05", "--dataloader_num_workers=1",
        "--per_device_eval_batch_size=4", f"--output_dir={tmp_path / 'other'}",
    )  # fmt: skip
    assert runs.newest()[0] == steps
    with runs.database() as database:
        assert [experiment.id for experiment in database.list_experiments()] == [1]


@pytest.mark.timeout(300)
def test_misspelled_hyperparameter_is_rejected(runs: LoopRuns) -> None:
    settings = ("hyperparameters.learning_rte=0.1", "hyperparameters.heads=2", "max_restarts=0")
    options = [option for setting in settings for option in ("--set", setting)]
    folder = EXAMPLE.parent
    process = runs.start("detcore", "run", folder / "const.yaml", folder, *options)
    output = "".join(process.communicate(timeout=240))
    assert process.returncode == 1, output
    assert "no field 'learning_rte'" in output
    assert "Did you mean 'learning_rate'?" in output


@pytest.mark.soak
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("family", "change"),
    [
        ("lightning", "precision is 'bf16-mixed' instead of '32-true'."),
        ("accelerate", "mixed_precision is 'bf16' instead of 'no'."),
    ],
)
def test_other_precision_is_rejected(runs: LoopRuns, family: str, change: str) -> None:
    command = ("python3", SCRIPTS / f"{family}_tasks.py", "--epochs=1000")
    runs.kill_after_checkpoint(*command)
    assert change in find_error(runs, *command, "--bf16")
    again = runs.start(*command)
    runs.wait_for(again, lambda: _count_runs(runs) == 2)


def _count_runs(runs: LoopRuns) -> int:
    with runs.database() as database:
        return len(database.list_runs(1))
