"""`detcore diverge` and `detcore replay` on Estimator trials, as users run them."""

from __future__ import annotations

import re
from pathlib import Path

from toy_command import Detcore

MODEL = """
import numpy as np
import tensorflow as tf
from detcore_estimator import (
    Estimator, EstimatorSpec, EstimatorTrial, EvalSpec, ModeKeys, TrainSpec,
)

tf1 = tf.compat.v1


class Line(EstimatorTrial):
    def __init__(self, context):
        self.context = context

    def model_fn(self, features, labels, mode):
        kernel = tf1.get_variable("kernel", [3, 1])
        step = tf1.train.get_or_create_global_step()
        if mode == ModeKeys.TRAIN:
            features = tf.where(tf.equal(step, 41), features * FACTOR, features)
        loss = tf.reduce_mean((features @ kernel - labels) ** 2)
        if mode == ModeKeys.EVAL:
            return EstimatorSpec(mode, loss=loss)
        optimizer = self.context.wrap_optimizer(tf1.train.AdamOptimizer(0.01))
        return EstimatorSpec(mode, loss=loss, train_op=optimizer.minimize(loss, step))

    def build_estimator(self):
        return Estimator(self.model_fn)

    def data(self):
        x = np.random.default_rng(3).normal(size=(200, 3)).astype("float32")
        dataset = tf.data.Dataset.from_tensor_slices((x, x.sum(axis=1, keepdims=True)))
        return self.context.wrap_dataset(dataset).shuffle(200, seed=5).batch(8)

    def build_train_spec(self):
        return TrainSpec(self.data)

    def build_validation_spec(self):
        return EvalSpec(self.data)
"""


def test_diverge_and_replay(tmp_path: Path) -> None:
    with Detcore(tmp_path) as detcore:
        trials = []
        for factor in ("1.0", "1.01"):
            folder = tmp_path / f"model-{factor}"
            folder.mkdir()
            (folder / "model_def.py").write_text(MODEL.replace("FACTOR", factor))
            config = detcore.config(
                hyperparameters={"global_batch_size": 8},
                searcher__metric="loss",
                searcher__max_length={"batches": 60},
                scheduling_unit=10,
                min_validation_period={"batches": 60},
                min_checkpoint_period={"batches": 30},
                reproducibility__step_digests=1,
            )
            finished = detcore("run", config, folder, "--json")
            assert finished.code == 0, finished.output
            trials.append(int(finished.summary["trials"][0]["trial_id"]))
        one, other = trials
        finished = detcore("replay", one, "--steps", "31:60")
        assert finished.code == 0, finished.output
        assert finished.stdout.startswith(f"trial {one}, steps 31:60: equal (30 steps compared, ")
        finished = detcore("diverge", one, other)
        assert finished.code == 1, finished.output
        pattern = rf"trial {one} and trial {other} differ: step 42, loss, model\.kernel\n"
        assert re.search(pattern, finished.stdout), finished.output
