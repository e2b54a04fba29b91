"""Migrate trial classes from Determined to this plugin."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest
from toy_command import Detcore

from detcore_determined.migrate import migrate_file
from detcore_estimator import EstimatorTrial, MetricReducer, RunHook
from detcore_estimator.tensorflow_versions import tf, tf_estimator

MODEL_DEF = """\
from typing import Any, Dict, List

import determined
import determined.estimator
import numpy as np
import tensorflow as tf
from determined import estimator
from determined.estimator import EstimatorTrial, EstimatorTrialContext, ServingInputReceiverFn


class Mean(estimator.MetricReducer):
    def __init__(self) -> None:
        self.sum, self.count = 0.0, 0

    def accumulate(self, metric: Any) -> Any:
        self.sum, self.count = self.sum + float(np.sum(metric)), self.count + np.size(metric)
        return self.sum, self.count

    def cross_slot_reduce(self, per_slot_metrics: List[Any]) -> float:
        sums, counts = zip(*per_slot_metrics)
        return sum(sums) / sum(counts)


class Note(determined.estimator.RunHook):
    def on_checkpoint_end(self, checkpoint_dir: str) -> None:
        pass


class LineTrial(EstimatorTrial):
    def __init__(self, context: EstimatorTrialContext) -> None:
        self.context = context
        raise determined.InvalidHP("none fits")

    def build_estimator(self) -> Any: ...
    def build_train_spec(self) -> Any: ...
    def build_validation_spec(self) -> Any: ...

    def build_serving_input_receiver_fns(self) -> Dict[str, ServingInputReceiverFn]:
        return {}
"""

# A script in the style of Determined 0.12: Iris with a premade Estimator and hooks.
IRIS = """\
import argparse
import json
import os
import pathlib
import signal

import determined as det
import numpy as np
import tensorflow as tf
from determined.estimator import EstimatorNativeContext, RunHook, init

NAMES = ["sepal_length", "sepal_width", "petal_length", "petal_width"]


class Kill(RunHook):
    def __init__(self, steps, folder):
        self.steps, self.folder = steps, pathlib.Path(folder)

    def before_run(self, run_context):
        return tf.compat.v1.train.SessionRunArgs(tf.compat.v1.train.get_global_step())

    def after_run(self, run_context, run_values):
        marker = self.folder / f"killed-{run_values.results}"
        if marker.name in self.steps and not marker.exists():
            marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)

    def on_checkpoint_end(self, checkpoint_dir):
        (pathlib.Path(checkpoint_dir) / "note.json").write_text(json.dumps("by a RunHook"))


def make_input_fn(context: EstimatorNativeContext, seed, training=False):
    def read():
        rng = np.random.default_rng(seed)
        kinds = rng.integers(0, 3, 48)
        sizes = (rng.normal(size=(48, 4)) + kinds[:, None]).astype("float32")
        features = {name: sizes[:, [index]] for index, name in enumerate(NAMES)}
        data = tf.data.Dataset.from_tensor_slices((features, kinds))
        data = context.wrap_dataset(data)
        if training:
            data = data.apply(tf.data.experimental.shuffle_and_repeat(48))
        return data.batch(context.get_per_slot_batch_size())

    return read


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--mode", default="submit")
    args = parser.parse_args()
    config = {
        "hyperparameters": {
            "global_batch_size": det.Constant(8),
            "lr": det.Log(-3.0, -1.0, 10),
            "units": det.Integer(4, 16),
        },
        "searcher": {"name": "single", "metric": "accuracy", "max_steps": 1},
    }
    context = init(config, mode=det.Mode(args.mode), context_dir=str(pathlib.Path.cwd()))
    data = context.get_data_config()
    optimizer = context.wrap_optimizer(
        tf.compat.v1.train.AdagradOptimizer(learning_rate=context.get_hparam("lr"))
    )
    estimator = tf.compat.v1.estimator.DNNClassifier(
        feature_columns=[tf.feature_column.numeric_column(name) for name in NAMES],
        hidden_units=[8],
        n_classes=3,
        optimizer=optimizer,
        dropout=0.2,
    )
    context.train_and_evaluate(
        estimator,
        tf.estimator.TrainSpec(
            make_input_fn(context, 0, training=True), hooks=[Kill(data["kill"], data["folder"])]
        ),
        tf.estimator.EvalSpec(make_input_fn(context, 1), steps=None),
    )
"""
KILLS = ["killed-1", "killed-6", "killed-11"]


def train_migrated_script(detcore: Detcore, target: Path, kills: list[str]) -> Path:
    """Migrate the script, train 12 batches as a trial, and return the latest checkpoint."""
    target.mkdir()
    (target / "train.py").write_text(IRIS)
    experiment = {
        "entrypoint": "python3 train.py",
        "hyperparameters": {"global_batch_size": 8, "lr": 0.05},
        "searcher": {"name": "single", "metric": "loss", "max_length": {"batches": 12}},
        "min_checkpoint_period": {"batches": 4},
        "data": {"folder": str(detcore.tmp_path), "kill": kills},
        "reproducibility": {"experiment_seed": 7},
        "max_restarts": 4,
    }
    (target / "const.yaml").write_text(json.dumps(experiment))
    assert detcore("migrate", target).code == 0
    finished = detcore("run", target / "const.yaml", target, "--json", timeout_s=240)
    assert finished.code == 0, finished.stderr
    (trial,) = finished.summary["trials"]
    return detcore.home / "checkpoints" / str(trial["latest_checkpoint"])


def read_variables(checkpoint: Path) -> dict[str, bytes]:
    (index,) = checkpoint.glob("model.ckpt-*.index")
    reader = tf.train.load_checkpoint(str(index.with_suffix("")))
    return {name: reader.get_tensor(name).tobytes() for name in reader.get_variable_to_shape_map()}


@pytest.mark.skipif(tf_estimator() is None, reason="this TensorFlow has no tf.estimator")
@pytest.mark.parametrize("kills", [["killed-6"], pytest.param(KILLS, marks=pytest.mark.soak)])
def test_migrated_script_resumes_and_loads(tmp_path: Path, kills: list[str]) -> None:
    with Detcore(tmp_path) as detcore:
        plain = train_migrated_script(detcore, tmp_path / "plain", [])
        killed = train_migrated_script(detcore, tmp_path / "killed", kills)
    assert all((tmp_path / kill).exists() for kill in kills)
    variables = read_variables(plain)
    assert len(variables) > 4
    assert read_variables(killed) == variables
    assert json.loads((killed / "note.json").read_text()) == "by a RunHook"


def test_migrated_trial_imports(tmp_path: Path) -> None:
    path = tmp_path / "line_model_def.py"
    path.write_text(MODEL_DEF)
    report = migrate_file(path)
    assert report.is_changed
    assert report.findings == ()
    assert "determined" not in path.read_text()
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert issubclass(module.LineTrial, EstimatorTrial)
    assert issubclass(module.Mean, MetricReducer)
    assert issubclass(module.Note, RunHook)
    reducer = module.Mean()
    assert reducer.cross_slot_reduce([reducer.accumulate([1.0, 2.0]), (3.0, 1)]) == 2.0
