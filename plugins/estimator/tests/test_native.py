"""A script in the native form, run directly and as a trial of ``detcore run``."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_run import detcore, folder_of, read_validations, variables_of
from toy_command import Detcore

import detcore_estimator
from detcore.errors import ConfigError, InvalidExperimentError
from detcore.records import Database
from detcore_estimator.load_checkpoint import load_estimator_from_checkpoint_path
from detcore_estimator.tensorflow_versions import tf

__all__ = ["detcore"]  # a fixture

SCRIPT = """
import os
import time
import numpy as np
import tensorflow as tf
import detcore_estimator
from detcore.experimental import estimator

tf1 = tf.compat.v1
OPTIONS = {options}
context = estimator.init(**OPTIONS.get("init", {{}}))
RATE = context.get_hparams().get("learning_rate", 0.05)
print("rate", RATE, "seed", context.get_trial_seed(), flush=True)

X = np.random.RandomState(0).normal(size=(60, 4)).astype("float32")
Y = (X.sum(1) > 0).astype("int64")


def model_fn(features, labels, mode):
    with tf1.variable_scope("net"):
        w = tf1.get_variable("w", shape=(4, 2))
        b = tf1.get_variable("b", shape=(2,), initializer=tf1.zeros_initializer())
    logits = tf.matmul(tf.nn.dropout(features, 0.2) if mode == "train" else features, w) + b
    predictions = {{"class": tf.argmax(logits, 1), "logits": logits}}
    if mode == "infer":
        return detcore_estimator.EstimatorSpec(mode, predictions=predictions)
    loss = tf1.losses.sparse_softmax_cross_entropy(labels, logits)
    if mode == "eval":
        accuracy = tf1.metrics.accuracy(labels, predictions["class"])
        metrics = {{"accuracy": accuracy}}
        return detcore_estimator.EstimatorSpec(mode, loss=loss, eval_metric_ops=metrics)
    optimizer = context.wrap_optimizer(tf1.train.AdamOptimizer(RATE))
    step = tf1.train.get_or_create_global_step()
    return detcore_estimator.EstimatorSpec(mode, loss=loss, train_op=optimizer.minimize(loss, step))


def train_input_fn():
    data = tf.data.Dataset.from_tensor_slices((X, Y))
    return context.wrap_dataset(data).shuffle(60).batch(8)


def eval_input_fn():
    return context.wrap_dataset(tf.data.Dataset.from_tensor_slices((X, Y))).batch(20)


def serving():
    x = tf1.placeholder(tf.float32, (None, 4), "x")
    return detcore_estimator.export.TensorServingInputReceiver(x, {{"x": x}})


class Slow(tf1.train.SessionRunHook):
    def after_run(self, run_context, run_values):
        time.sleep(OPTIONS.get("pause_s", 0))


context.serving_input_receiver_fns = {{"serving": serving}}
before = OPTIONS.get("before")
if before:
    exec(before)
hooks = [Slow()] if OPTIONS.get("pause_s") else None
context.train_and_evaluate(
    detcore_estimator.Estimator(model_fn),
    detcore_estimator.TrainSpec(train_input_fn, max_steps=OPTIONS.get("max_steps"), hooks=hooks),
    detcore_estimator.EvalSpec(eval_input_fn, steps=None),
)
print("after", context.get_experiment_id(), flush=True)
after = OPTIONS.get("after")
if after:
    exec(after)
"""


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


def assert_same(left: dict[str, np.ndarray], right: dict[str, np.ndarray]) -> None:
    assert left.keys() == right.keys()
    assert len(left) > 4
    for name, value in left.items():
        assert value.tobytes() == right[name].tobytes(), name


@pytest.mark.cold
def test_script_runs_directly(detcore: Detcore) -> None:
    """The script reports metrics, and saves a serving function and its code."""
    config = {
        "hyperparameters": {"learning_rate": 0.02},
        "searcher": {"metric": "accuracy", "smaller_is_better": False},
        "min_validation_period": {"batches": 5},
        "reproducibility": {"experiment_seed": 3},
    }
    finished = run_script(detcore, init={"config": config}, max_steps=12)
    assert finished.returncode == 0, finished.stderr
    assert "rate 0.02" in finished.stdout
    assert "after 1" in finished.stdout
    with records(detcore) as database:
        experiment = database.get_experiment(1)
        (trial,) = database.list_trials(1)
        assert (experiment.name, experiment.state) == ("train.py", "COMPLETED")
        assert experiment.config["searcher"]["max_length"] == {"batches": 12}
        assert trial.hparams == {"learning_rate": 0.02}
        validated = database.metrics(trial.id, "validation")
        assert [row.steps_completed for row in validated] == [5, 10, 12]
        latest = database.latest_checkpoint(trial.id)
    assert latest is not None
    assert latest.steps_completed == 12
    folder = detcore.home / "checkpoints" / latest.uuid
    assert sorted(path.name for path in (folder / "code").iterdir()) == ["train.py"]
    loaded = load_estimator_from_checkpoint_path(folder)
    classes = loaded.signatures["serving_default"](x=tf.zeros((3, 4)))["class"]
    assert classes.shape == (3,)
    assert variables_of(folder)["global_step"] == 12


def test_test_mode_trains_one_batch(detcore: Detcore) -> None:
    options = {"init": {"test": True, "context_dir": str(detcore.tmp_path / "scripts")}}
    finished = run_script(detcore, **options)
    assert finished.returncode == 0, finished.stderr
    with records(detcore) as database:
        (checkpoint,) = database.list_checkpoints()
        (trial,) = database.list_trials(1)
        assert checkpoint.steps_completed == 1
        assert [row.steps_completed for row in database.metrics(trial.id, "validation")] == [1]
        assert [row.steps_completed for row in database.metrics(trial.id, "training")] == [1]
    code = detcore.home / "checkpoints" / checkpoint.uuid / "code"
    assert sorted(path.name for path in code.iterdir()) == ["notes.txt", "train.py"]


FAULTS: dict[str, tuple[dict[str, Any], str]] = {
    "no length": ({}, "no searcher.max_length, and the TrainSpec has no max_steps"),
    "twice": (
        {"init": {"test": True}, "after": "context.train_and_evaluate(None, None, None)"},
        "called twice",
    ),
    "tensorboard too early": (
        {"before": "context.get_tensorboard_path()"},
        "before train_and_evaluate",
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_script_errors(detcore: Detcore, name: str) -> None:
    options, words = FAULTS[name]
    finished = run_script(detcore, **options)
    assert finished.returncode == 1
    assert words in finished.stderr


def test_training_error_is_recorded(detcore: Detcore) -> None:
    finished = run_script(detcore, max_steps=3, before="X = X[:0]; Y = Y[:0]")
    assert finished.returncode == 1
    with records(detcore) as database:
        experiment = database.get_experiment(1)
    assert experiment.state == "ERROR"


def test_interrupted_script_saves(detcore: Detcore) -> None:
    process = subprocess.Popen(
        [sys.executable, str(write_script(detcore, max_steps=100_000, pause_s=0.02))],
        env=detcore.variables(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    detcore.started.append(process)
    # Signals are handled before the first metrics are written.
    detcore.wait_for(
        lambda: any("loss" in path.read_text() for path in detcore.home.rglob("events-*.jsonl")),
        180,
    )
    process.send_signal(signal.SIGINT)
    stdout, stderr = process.communicate(timeout=180)
    assert process.returncode == 75, stderr
    assert "after" not in stdout
    with records(detcore) as database:
        assert database.get_experiment(1).state == "PAUSED"


def run_config(detcore: Detcore) -> Path:
    return detcore.config(
        entrypoint="python3 train.py",
        hyperparameters={"learning_rate": 0.01},
        searcher={"name": "single", "metric": "loss", "max_length": {"batches": 60}},
        min_checkpoint_period={"batches": 10},
        min_validation_period={"batches": 20},
    )


@pytest.mark.soak
@pytest.mark.long
def test_script_resumes_exactly_as_a_trial(detcore: Detcore) -> None:
    script = write_script(detcore, max_steps=7)  # the run's length has priority
    straight = detcore("run", run_config(detcore), script.parent, "--json")
    assert straight.code == 0, straight.stdout + straight.stderr
    assert straight.summary["trials"][0]["steps_completed"] == 60
    expected = variables_of(folder_of(detcore, straight.summary))

    # The same computation, but slow enough for a kill.
    write_script(detcore, max_steps=7, pause_s=0.1)
    process = detcore.start("run", run_config(detcore), script.parent)
    before = len(detcore.committed())
    detcore.wait_for(lambda: len(detcore.committed()) >= before + 1, 90)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate(timeout=180)
    process = detcore.start("run", "--resume", 2)
    detcore.wait_for(lambda: len(detcore.committed()) >= before + 2, 90)
    process.send_signal(signal.SIGTERM)
    stdout, stderr = process.communicate(timeout=180)
    assert process.returncode == 75, stdout + stderr
    assert "rate 0.01" in stdout
    finished = detcore("run", "--resume", 2, "--json")
    assert finished.code == 0, finished.stdout + finished.stderr
    assert_same(variables_of(folder_of(detcore, finished.summary)), expected)
    assert read_validations(detcore, 2) == read_validations(detcore, 1)


def test_script_starts_from_a_checkpoint(detcore: Detcore) -> None:
    assert run_script(detcore, max_steps=9).returncode == 0
    searcher = {"source_trial_id": 1, "max_length": {"batches": 4}}
    finished = run_script(detcore, init={"config": {"searcher": searcher}})
    assert finished.returncode == 0, finished.stderr
    with records(detcore) as database:
        latest = database.latest_checkpoint(2)
        assert latest is not None
    assert latest.steps_completed == 4
    # The model's counter continues. The trial's counter is 4.
    assert variables_of(detcore.home / "checkpoints" / latest.uuid)["global_step"] == 13


@pytest.mark.parametrize("given", [{"command": ["python3", "x.py"]}, {"master_url": "http://m"}])
def test_cluster_arguments_are_rejected(given: dict[str, Any]) -> None:
    with pytest.raises(InvalidExperimentError, match=r"(?s)This release.*detcore run"):
        detcore_estimator.init(**given)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"local": "yes"}, "local is"),
        ({"config": 5}, "config is"),
        ({"config": {"searcher": {"metrik": "loss"}}}, "metrik"),
        ({"config": {"searcher": 5}}, "searcher"),
        ({"config": {"schedulin_unit": 5}}, "schedulin_unit"),
        ({"context_dir": "/no/where"}, "context_dir"),
    ],
)
def test_wrong_arguments(given: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        detcore_estimator.init(**given)


def test_search_is_rejected() -> None:
    searcher = {"name": "random", "max_trials": 3, "max_length": {"batches": 3}}
    with pytest.raises(InvalidExperimentError, match=r"'random'.*one trial"):
        detcore_estimator.init({"searcher": searcher})
