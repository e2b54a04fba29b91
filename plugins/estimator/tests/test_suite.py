"""Estimator trials fulfill the contract of a framework plugin."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from detcore_testing import FrameworkSuite

HAS_HOROVOD = importlib.util.find_spec("horovod") is not None


@pytest.mark.long(together="suite")
class TestEstimator(FrameworkSuite):
    framework = "estimator"
    model_dir = Path(__file__).parent / "suite_model"
    entrypoint = "suite_def:LineTrial"
    worker_entrypoint = "suite_def:SteadyTrial"
    broken_entrypoint = "suite_def:BrokenTrial"
    stop_entrypoint = "suite_def:StoppingTrial"
    hyperparameters = {"global_batch_size": 8, "learning_rate": 0.01}
    invalid_hyperparameters = {"learning_rate": -1.0}
    changed_hyperparameters = {"learning_rate": 0.003}
    metric = "loss"
    num_validation_records = 50
    callback_kinds = (
        *("train_begin", "batch_end", "checkpoint"),
        *("validation_begin", "validation_end", "train_end"),
    )
    worker_tolerance = 1e-5
    # TensorFlow's reader and users of exports read these.
    unread_files = ("answers/*", "checkpoint", "graph.pbtxt", "model.ckpt-*.meta")
    declined = (
        {} if HAS_HOROVOD else {"several-workers": "Horovod does not support this TensorFlow"}
    )

    def read_state(self, checkpoint: Path) -> Mapping[str, np.ndarray]:
        (index,) = checkpoint.glob("model.ckpt-*.index")
        reader = tf.train.load_checkpoint(str(index.with_suffix("")))
        return {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}

    def callback_events(self, journal: Path) -> Sequence[str]:
        return journal.read_text().split()
