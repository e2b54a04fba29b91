"""A small regression model, and hooks that record their calls, for tests of Estimators."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import detcore_estimator as de
from detcore_estimator.tensorflow_versions import tf, tf1

RECORDS = 48
BATCH = 8
_random = np.random.RandomState(7)
FEATURES = _random.rand(RECORDS, 4).astype(np.float32)
LABELS = FEATURES.sum(axis=1, keepdims=True).astype(np.float32)


def train_input() -> Any:
    """Return an endless dataset of shuffled batches."""
    data = tf.data.Dataset.from_tensor_slices(({"x": FEATURES}, LABELS))
    return data.shuffle(RECORDS, seed=5).repeat().batch(BATCH)


def eval_input() -> Any:
    """Return a dataset of all records once, in order."""
    return tf.data.Dataset.from_tensor_slices(({"x": FEATURES}, LABELS)).batch(BATCH)


def model_fn(features: Any, labels: Any, mode: str, params: Any) -> Any:
    """Build two layers with dropout, trained by Adam. Works with both EstimatorSpec classes."""
    spec = params.get("spec", de.EstimatorSpec)
    first = tf1.get_variable("first", [4, 16])
    second = tf1.get_variable("second", [16, 1])
    hidden = tf.nn.relu(features["x"] @ first)
    if mode == de.ModeKeys.TRAIN:
        hidden = tf.nn.dropout(hidden, 0.2)
    value = hidden @ second
    if mode == de.ModeKeys.PREDICT:
        return spec(mode, predictions={"value": value, "twice": 2 * value})
    loss = tf.reduce_mean(tf.square(value - labels))
    optimizer = tf1.train.AdamOptimizer(params.get("rate", 0.01))
    return spec(
        mode,
        loss=loss,
        train_op=optimizer.minimize(loss, tf1.train.get_global_step()),
        eval_metric_ops={"error": tf1.metrics.mean_absolute_error(labels, value)},
    )


def replace_fields(change: Callable[[Any], dict[str, Any]]) -> Any:
    """Return `model_fn` with fields of its spec replaced by the result of a function."""

    def changed_model_fn(features: Any, labels: Any, mode: str) -> Any:
        spec = model_fn(features, labels, mode, {})
        return spec._replace(**change(spec))

    return changed_model_fn


def make_estimator(model_dir: Any, function: Any = model_fn, **config: Any) -> de.Estimator:
    """Return an estimator that saves only at the beginning and at the end."""
    config = {"tf_random_seed": 1, "save_checkpoints_steps": 10_000, **config}
    params = {} if function is model_fn else None
    return de.Estimator(function, str(model_dir), de.RunConfig(**config), params)


def serving_input() -> Any:
    """Return serialized requests with the features."""
    return de.export.build_raw_serving_input_receiver_fn(
        {"x": tf.TensorSpec([None, 4], tf.float32)}
    )()


def run_signature(path: Any, signature: str = "serving_default", **inputs: Any) -> dict[str, Any]:
    """Run a signature in a TensorFlow 1 session, as a server would."""
    with tf.Graph().as_default(), tf1.Session() as session:
        loaded = tf1.saved_model.load(session, ["serve"], str(path))
        definition = loaded.signature_def[signature]
        feeds = {definition.inputs[name].name: value for name, value in inputs.items()}
        fetches = {name: info.name for name, info in definition.outputs.items()}
        values: dict[str, Any] = session.run(fetches, feeds)
        return values


class Recorder(de.RunHook):  # type: ignore[misc]  # TensorFlow has no types
    """Records its calls by name, and requests a stop after some runs."""

    def __init__(
        self, calls: list[str] | None = None, name: str = "hook", *, stop_at: int = 0
    ) -> None:
        self.calls = [] if calls is None else calls
        self.name, self.stop_at = name, stop_at
        self.runs = self.end_step = 0

    def note(self, method: str) -> None:
        self.calls.append(f"{self.name}.{method}")

    def begin(self) -> None:
        self.note("begin")

    def after_create_session(self, session: Any, coord: Any) -> None:
        self.note("after_create_session")

    def before_run(self, run_context: Any) -> Any:
        self.note("before_run")

    def after_run(self, run_context: Any, run_values: Any) -> None:
        self.note("after_run")
        self.runs += 1
        if self.runs == self.stop_at:
            run_context.request_stop()

    def end(self, session: Any) -> None:
        self.note("end")
        self.end_step = int(session.run(tf1.train.get_global_step()))

    def on_checkpoint_load(self, checkpoint_dir: str) -> None:
        assert Path(checkpoint_dir, "checkpoint").exists()
        self.note("on_checkpoint_load")

    def on_checkpoint_end(self, checkpoint_dir: str) -> None:
        assert Path(checkpoint_dir, "checkpoint").exists()
        self.note("on_checkpoint_end")

    def on_trial_close(self) -> None:
        self.note("on_trial_close")


class Listener(tf1.train.CheckpointSaverListener):  # type: ignore[misc]
    """Records the saves, and requests a stop after a save."""

    def __init__(self, *, stop_at: int | None = None) -> None:
        self.calls: list[str] = []
        self.stop_at = stop_at

    def begin(self) -> None:
        self.calls.append("begin")

    def before_save(self, session: Any, global_step_value: int) -> None:
        self.calls.append(f"before {global_step_value}")

    def after_save(self, session: Any, global_step_value: int) -> bool:
        self.calls.append(f"after {global_step_value}")
        return global_step_value == self.stop_at

    def end(self, session: Any, global_step_value: int) -> None:
        self.calls.append(f"end {global_step_value}")


def run_python(*arguments: object) -> str:
    """Run Python in this directory, and return its output."""
    finished = subprocess.run(
        [sys.executable, *map(str, arguments)],
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert finished.returncode == 0, finished.stderr
    return finished.stdout
