"""The native API: a standalone script, and the same script as a trial of ``detcore run``."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from toy_command import Detcore

import detcore_keras
from detcore.errors import ConfigError, InvalidExperimentError
from detcore.records import Database
from detcore_keras.native_fit import read_fit_arguments

SCRIPT = """
import time
import numpy as np
import tensorflow as tf
from detcore.experimental import keras as native

keras = tf.keras
OPTIONS = {options}
context = native.init(**OPTIONS.get("init", {{}}))
RATE = context.get_hparams().get("learning_rate", 0.05)
print("rate", RATE, "seed", context.get_trial_seed(), flush=True)

X = np.random.RandomState(0).normal(size=(60, 4)).astype("float32")
Y = (X.sum(1) > 0).astype("int32")


def data(records):
    dataset = context.wrap_dataset(tf.data.Dataset.from_tensor_slices(records))
    return dataset.shuffle(60, seed=1).batch(8)


class Slow(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        time.sleep(OPTIONS.get("pause_s", 0))


model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(5), keras.layers.Dropout(0.3),
                          keras.layers.Dense(2)])
model = context.wrap_model(model)
model.compile(
    context.wrap_optimizer(keras.optimizers.Adam(RATE)),
    keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    metrics=["accuracy"],
)
fit = dict(OPTIONS.get("fit", {{}}), validation_data=(X, Y), callbacks=[Slow()])
if OPTIONS.get("dataset"):
    history = model.fit(data((X, Y)), **fit)
else:
    history = model.fit(X, Y, 8, **fit)
print("after", context.get_experiment_id(), type(history).__name__, flush=True)
print("saved", model.predict(X[:2], verbose=0).tolist(), flush=True)
after = OPTIONS.get("after")
if after:
    exec(after)
"""


@pytest.fixture
def detcore(tmp_path: Path) -> Iterator[Detcore]:
    with Detcore(tmp_path) as command:
        yield command


def write_script(detcore: Detcore, **options: Any) -> Path:
    folder = detcore.tmp_path / "scripts"
    folder.mkdir(exist_ok=True)
    (folder / "notes.txt").write_text("not a part of the training\n")
    path = folder / "train.py"
    path.write_text(SCRIPT.format(options=repr(options)))
    return path


def run_script(detcore: Detcore, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(write_script(detcore, **options))],
        env=detcore.variables(),
        cwd=detcore.tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def records(detcore: Detcore) -> Database:
    return Database.open(f"sqlite:///{detcore.home / 'detcore.db'}")


def arrays_of(folder: Path) -> dict[str, bytes]:
    """Return every array in a checkpoint, by file and name."""
    contents = {}
    for path in sorted(folder.rglob("*.npz")):
        with np.load(path, allow_pickle=False) as arrays:
            for name in arrays.files:
                contents[f"{path.name}/{name}"] = arrays[name].tobytes()
    return contents


@pytest.mark.cold
def test_standalone_script_trains(detcore: Detcore) -> None:
    """Length and batch size come from fit. Metrics, a checkpoint and the script are recorded."""
    config = {
        "hyperparameters": {"learning_rate": 0.02},
        "searcher": {"metric": "val_accuracy", "smaller_is_better": False},
        "min_validation_period": {"batches": 5},
        "reproducibility": {"experiment_seed": 3},
    }
    again = "model.fit(X, Y, 8, validation_data=(X, Y))"
    finished = run_script(detcore, init={"config": config}, fit={"epochs": 2}, after=again)
    assert finished.returncode == 1
    assert "model.fit() was called twice" in finished.stderr
    assert "rate 0.02" in finished.stdout
    assert "after 1 History" in finished.stdout
    with records(detcore) as database:
        experiment = database.get_experiment(1)
        (trial,) = database.list_trials(1)
        assert (experiment.name, experiment.state) == ("train.py", "COMPLETED")
        assert experiment.config["searcher"]["max_length"] == {"epochs": 2}
        assert trial.hparams == {"learning_rate": 0.02, "global_batch_size": 8}
        validated = database.metrics(trial.id, "validation")
        assert [row.steps_completed for row in validated] == [5, 10, 15, 16]
        latest = database.latest_checkpoint(trial.id)
    assert latest is not None
    assert latest.steps_completed == 16
    folder = detcore.home / "checkpoints" / latest.uuid
    assert sorted(path.name for path in (folder / "code").iterdir()) == ["train.py"]


def test_test_mode_trains_one_batch(detcore: Detcore) -> None:
    options = {"init": {"test": True, "context_dir": str(detcore.tmp_path / "scripts")}}
    finished = run_script(detcore, **options)
    assert finished.returncode == 0, finished.stderr
    with records(detcore) as database:
        (checkpoint,) = database.list_checkpoints()
        (trial,) = database.list_trials(1)
        assert checkpoint.steps_completed == 1
        assert [row.steps_completed for row in database.metrics(trial.id, "validation")] == [1]
    code = detcore.home / "checkpoints" / checkpoint.uuid / "code"
    assert sorted(path.name for path in code.iterdir()) == ["notes.txt", "train.py"]


def run_config(detcore: Detcore) -> Path:
    return detcore.config(
        entrypoint="python3 train.py",
        hyperparameters={"learning_rate": 0.01, "global_batch_size": 8},
        searcher={"name": "single", "metric": "val_loss", "max_length": {"batches": 60}},
        min_checkpoint_period={"batches": 10},
        min_validation_period={"batches": 20},
    )


@pytest.mark.soak
def test_killed_native_run_resumes_exactly(detcore: Detcore) -> None:
    script = write_script(detcore, dataset=True)  # the run's length counts
    straight = detcore("run", run_config(detcore), script.parent, "--json")
    assert straight.code == 0, straight.stdout + straight.stderr
    assert straight.summary["trials"][0]["steps_completed"] == 60
    expected = arrays_of(checkpoint_of(detcore, straight.summary))
    assert len(expected) > 8

    # The same computation, but slow enough to be killed in time.
    write_script(detcore, dataset=True, pause_s=0.1)
    process = detcore.start("run", run_config(detcore), script.parent)
    before = len(detcore.committed())
    detcore.wait_for(lambda: len(detcore.committed()) >= before + 1, 90)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate(timeout=180)
    write_script(detcore, dataset=True)
    finished = detcore("run", "--resume", 2, "--json")
    assert finished.code == 0, finished.stdout + finished.stderr
    assert arrays_of(checkpoint_of(detcore, finished.summary)) == expected


def checkpoint_of(detcore: Detcore, summary: dict[str, Any]) -> Path:
    return detcore.home / "checkpoints" / str(summary["trials"][0]["latest_checkpoint"])


DATA = {"x": [1], "validation_data": ([1], [1])}


def test_fit_arguments_are_read() -> None:
    by_epochs = read_fit_arguments(
        "x", "y", 4, 3, validation_data="v", sample_weight="w", verbose=0, shuffle=False
    )
    assert by_epochs.training_data == ("x", "y", "w")
    assert (by_epochs.batch_size, by_epochs.epochs, by_epochs.callbacks) == (4, 3, [])
    assert by_epochs.options == {"verbose": False, "shuffle": False}
    by_steps = read_fit_arguments(generator="g", validation_data="v", steps_per_epoch=7, epochs=2)
    assert (by_steps.training_data, by_steps.steps_per_epoch, by_steps.epochs) == ("g", 7, 2)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"x": 1}, "no validation_data"),
        ({"validation_data": 1}, r"no data \(x\)"),
        ({**DATA, "validation_freq": 2}, "min_validation_period"),
        ({**DATA, "epochs": 0}, r"epochs=0 \(int\)"),
        ({**DATA, "epoch": 3}, "unknown arguments of model.fit: epoch"),
    ],
)
def test_unusable_fit_arguments_are_rejected(given: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidExperimentError, match=words):
        read_fit_arguments(**given)


@pytest.mark.parametrize("given", [{"command": ["python3", "x.py"]}, {"master_url": "http://m"}])
def test_cluster_arguments_are_rejected(given: dict[str, Any]) -> None:
    with pytest.raises(InvalidExperimentError, match=r"(?s)This release.*detcore run"):
        detcore_keras.init(**given)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"local": "yes"}, "local is"),
        ({"config": 5}, "config is"),
        ({"config": {"searcher": {"metrik": "loss"}}}, "metrik"),
        ({"context_dir": "/no/where"}, "context_dir"),
    ],
)
def test_invalid_init_arguments_are_rejected(given: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        detcore_keras.init(**given)
