"""Scripts that call `detcore_keras.fit`, which are killed and started again."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from _fakes import functional, records, seed_everything
from tensorflow_names import KERAS_MAJOR, keras, tf
from test_restore_faults import PLANTED

import detcore_keras
from detcore.errors import DetcoreError

SCRIPTS = Path(__file__).parent / "scripts"

pytestmark = pytest.mark.timeout(900)


def run_script(folder: Path, *arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    """Run a script of ``scripts/`` in a separate process."""
    folder.mkdir(exist_ok=True)
    script, *parameters = arguments
    finished = subprocess.run(
        [sys.executable, str(SCRIPTS / script), *parameters],
        env={**os.environ, "DETCORE_HOME": str(folder / "home")},
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert finished.returncode == code, finished.stdout + finished.stderr
    return finished


def read_result(finished: subprocess.CompletedProcess[str]) -> list[Any]:
    last = finished.stdout.splitlines()[-1]
    result: list[Any] = json.loads(last.removeprefix("result "))
    return result


def check_resume(folder: Path, *script: str, stops: list[str]) -> list[Any]:
    """Check that a script ends identically after interruptions, and return its result."""
    expected = read_result(run_script(folder / "whole", *script))
    for stop in stops:
        code = 75 if stop.startswith("term") else -signal.SIGKILL
        run_script(folder / "stopped", *script, stop, code=code)
    finished = run_script(folder / "stopped", *script)
    assert read_result(finished) == expected
    assert re.search(r"from batch [1-9]", finished.stderr)
    return expected


def test_usual_callbacks_continue_in_epoch(tmp_path: Path) -> None:
    # 36 records, so an epoch has 6 batches.
    result = check_resume(
        tmp_path, "fit_cases.py", "arrays", stops=["batch-3", "term-9", "batch-8"]
    )
    assert len(result[2]["val_loss"]) == len(result[3]) > 3


def test_shuffling_sequence_continues_in_epoch(tmp_path: Path) -> None:
    result = check_resume(tmp_path, "fit_cases.py", "sequence", stops=["batch-9"])
    assert (len(result[2]["loss"]), len(result[2]["val_loss"])) == (4, 2)


def test_shuffled_dataset_continues_in_epoch(tmp_path: Path) -> None:
    result = check_resume(tmp_path, "fit_cases.py", "dataset", stops=["batch-9"])
    assert len(result[2]["val_mae"]) == 5


def test_steps_per_epoch_continue(tmp_path: Path) -> None:
    result = check_resume(tmp_path, "fit_cases.py", "steps", stops=["epoch-3", "epoch-5"])
    assert result[3] == [2, 3, 4, 5, 6, 7, 8][: len(result[3])]


def test_second_fit_continues(tmp_path: Path) -> None:
    """The first fit is complete, and is restored."""
    check_resume(tmp_path, "fit_cases.py", "twice", stops=["batch-28"])


def test_killed_folds_equal_uninterrupted_folds(tmp_path: Path) -> None:
    expected = read_result(run_script(tmp_path / "whole", "folds.py", "-"))
    for fold, stop in [("0", "batch-6"), ("2", "batch-7")]:
        run_script(tmp_path / "killed", "folds.py", fold, stop, code=-signal.SIGKILL)
    assert read_result(run_script(tmp_path / "killed", "folds.py", "-")) == expected


def test_faults_of_restored_script_are_named(tmp_path: Path) -> None:
    run_script(tmp_path, "fit_faults.py", "-", "batch-30", code=-signal.SIGKILL)
    finished = run_script(tmp_path, "fit_faults.py", "-")
    assert "differ from the earlier run" not in finished.stderr
    errors = json.loads((tmp_path / "faults.json").read_text())
    assert len(errors) > 20
    for fault, error in errors.items():
        part = PLANTED[fault][1].partition(" was")[0]
        assert re.search(part, error), f"{fault}: {error}"


@pytest.mark.soak
@pytest.mark.parametrize("mode", ["eager", "graph", "own"])
def test_frozen_layers_and_losses_continue(tmp_path: Path, mode: str) -> None:
    check_resume(tmp_path, "freezes.py", mode, stops=["epoch-1", "epoch-3"])


@pytest.mark.parametrize(
    "mode", ["graph", *(pytest.param(m, marks=pytest.mark.soak) for m in ("eager", "executions"))]
)
def test_lazily_built_optimizers_continue(tmp_path: Path, mode: str) -> None:
    check_resume(tmp_path, "gan.py", mode, stops=["epoch-1", "epoch-2", "epoch-4"])


def compile_model() -> Any:
    seed_everything()
    model = functional()
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"x": (part for part in "ab")}, r"generator.*not supported as training data"),
        ({"validation_data": iter(())}, "not supported as validation data"),
        (
            {"x": tf.data.Dataset.range(3).repeat(), "y": None},
            "Pass steps_per_epoch, or remove repeat",
        ),
        ({"x": tf.data.Dataset.range(3), "validation_split": 0.5}, "only arrays can be split"),
        ({"validation_split": 1.5}, "leaves 0 of 52 records"),
        ({"epochs": 2, "initial_epoch": 2}, "initial_epoch=2, epochs=2"),
        ({"validation_freq": [1, 5]}, "expected an integer >= 1"),
        ({"epoch": 2}, "unknown arguments of model.fit: epoch"),
    ],
)
def test_unusable_arguments_are_rejected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: dict[str, Any], words: str
) -> None:
    monkeypatch.setenv("DETCORE_HOME", str(tmp_path / "home"))
    x, y = records()
    with pytest.raises(DetcoreError, match=words):
        detcore_keras.fit(compile_model(), **{"x": x, "y": y, **arguments})


def test_model_must_be_compiled() -> None:
    with pytest.raises(DetcoreError, match="not a compiled Keras model"):
        detcore_keras.fit(functional(), *records())


def test_fit_equals_keras_without_shuffling(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DETCORE_HOME", str(tmp_path / "home"))
    x, y = records()
    # Keras 3 weighs other classes by 1, and Keras 2 rejects them.
    class_weight = {0: 0.5, 1: 2.0, **({} if KERAS_MAJOR == 3 else {2: 1.0})}

    def train(function: Any) -> Any:
        seed_everything()
        model = keras.Sequential([keras.layers.Dense(9, activation="relu"), keras.layers.Dense(1)])
        model.compile(keras.optimizers.Adam(0.1), "mse", metrics=["mae"])
        history = function(model)(
            x, y, epochs=7, initial_epoch=2, shuffle=False, validation_split=0.3, verbose=0,
            batch_size=60, validation_batch_size=7, validation_freq=2, class_weight=class_weight,
            callbacks=[keras.callbacks.EarlyStopping(monitor="loss", patience=0)],
        )  # fmt: skip
        return history.epoch, history.history, [w.tolist() for w in model.get_weights()]

    expected = train(lambda model: model.fit)
    assert train(lambda model: lambda *a, **k: detcore_keras.fit(model, *a, **k)) == expected


def test_metrics_are_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DETCORE_HOME", str(tmp_path / "home"))
    detcore_keras.fit(compile_model(), *records())
    assert re.search(r"Epoch 1/1 - loss: \d\.\d{4}\n", capsys.readouterr().out)
