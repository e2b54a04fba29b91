"""Handwritten digits: 1797 scans of 8 x 8 pixels, included in scikit-learn.

A custom model function in the style of ``tf.estimator``, on classes that run on every TensorFlow
from 2.15: an ``EstimatorTrial`` whose estimator and specs are ``detcore_estimator``'s.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits

from detcore_estimator import (
    Estimator,
    EstimatorSpec,
    EstimatorTrial,
    EstimatorTrialContext,
    EvalSpec,
    ModeKeys,
    RunHook,
    TrainSpec,
    export,
)

tf1 = tf.compat.v1

TRAINING_RECORDS = 1437  # four fifths
NUM_CLASSES = 10


def load_split(part: str) -> tuple[np.ndarray, np.ndarray]:
    """Return images ``(record, 8, 8), uint8, 0 to 16`` and labels ``(record,), int32``.

    The split is fixed, because it must not depend on the trial's seed.
    """
    digits = load_digits()
    order = np.random.RandomState(0).permutation(len(digits.target))
    indices = order[:TRAINING_RECORDS] if part == "train" else order[TRAINING_RECORDS:]
    return digits.images[indices].astype("uint8"), digits.target[indices].astype("int32")


def add_convolution(images: tf.Tensor, filters: int, name: str) -> tf.Tensor:
    """Apply 3 x 3 convolutions with ReLU that keep the image size."""
    with tf1.variable_scope(name):
        kernel = tf1.get_variable("kernel", [3, 3, images.shape[-1], filters])
        bias = tf1.get_variable("bias", [filters], initializer=tf1.zeros_initializer())
    return tf.nn.relu(tf.nn.conv2d(images, kernel, strides=1, padding="SAME") + bias)


def add_dense(values: tf.Tensor, units: int, name: str) -> tf.Tensor:
    """Apply an affine map to ``(record, feature)``."""
    with tf1.variable_scope(name):
        kernel = tf1.get_variable("kernel", [values.shape[-1], units])
        bias = tf1.get_variable("bias", [units], initializer=tf1.zeros_initializer())
    return values @ kernel + bias


def compute_logits(images: tf.Tensor, dropout: float) -> tf.Tensor:
    """Return logits ``(record, 10)`` for images ``(record, 8, 8), 0 to 16``."""
    hidden = add_convolution(images[..., tf.newaxis] / 16, 32, "first")
    hidden = tf.nn.max_pool2d(hidden, ksize=2, strides=2, padding="VALID")
    hidden = add_convolution(hidden, 64, "second")
    hidden = tf.reshape(hidden, [-1, 4 * 4 * 64])
    if dropout:
        hidden = tf.nn.dropout(hidden, rate=dropout)
    return add_dense(hidden, NUM_CLASSES, "logits")


def compute_worst_accuracy(batches: list[dict[str, np.ndarray]]) -> float:
    """Return the accuracy on the worst-recognized digit."""
    labels = np.concatenate([batch["labels"] for batch in batches])
    answers = np.concatenate([batch["answers"] for batch in batches])
    return min(float(np.mean(answers[labels == digit] == digit)) for digit in np.unique(labels))


class Provenance(RunHook):
    """Adds a file about the training data to every checkpoint."""

    def __init__(self, hparams: dict[str, Any]) -> None:
        self._facts = {"data": "scikit-learn digits", "records": TRAINING_RECORDS, **hparams}

    def on_checkpoint_end(self, checkpoint_dir: str) -> None:
        Path(checkpoint_dir, "provenance.json").write_text(json.dumps(self._facts, indent=2))


class DigitsTrial(EstimatorTrial):
    """A small convolutional network on scikit-learn's digits."""

    def __init__(self, context: EstimatorTrialContext) -> None:
        self.context = context

    def build_estimator(self) -> Estimator:
        params = {
            "learning_rate": self.context.get_hparam("learning_rate"),
            "dropout": self.context.get_hparam("dropout"),
        }
        return Estimator(self._model_fn, params=params)

    def _model_fn(
        self, features: dict[str, tf.Tensor], labels: Any, mode: str, params: dict[str, float]
    ) -> EstimatorSpec:
        dropout = params["dropout"] if mode == ModeKeys.TRAIN else 0.0
        logits = compute_logits(features["image"], dropout)
        answers = tf.argmax(logits, axis=1, output_type=tf.int32)
        if mode == ModeKeys.PREDICT:
            predictions = {"digit": answers, "probabilities": tf.nn.softmax(logits)}
            outputs = {"serving_default": export.PredictOutput(predictions)}
            return EstimatorSpec(mode, predictions=predictions, export_outputs=outputs)

        loss = tf.reduce_mean(
            tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
        )
        if mode == ModeKeys.EVAL:
            metrics = {
                "accuracy": tf1.metrics.accuracy(labels, answers),
                "worst_digit_accuracy": self.context.make_metric(
                    {"labels": labels, "answers": answers}, compute_worst_accuracy, np.float32
                ),
            }
            return EstimatorSpec(mode, loss=loss, eval_metric_ops=metrics)

        optimizer = tf1.train.AdamOptimizer(params["learning_rate"])
        optimizer = self.context.wrap_optimizer(optimizer)
        train_op = optimizer.minimize(loss, global_step=tf1.train.get_global_step())
        return EstimatorSpec(mode, loss=loss, train_op=train_op)

    def build_train_spec(self) -> TrainSpec:
        hooks = [Provenance(self.context.get_hparams())]
        return TrainSpec(lambda: self._input_fn("train", shuffle=True), hooks=hooks)

    def build_validation_spec(self) -> EvalSpec:
        return EvalSpec(lambda: self._input_fn("validate"), steps=None)

    def _input_fn(self, part: str, shuffle: bool = False) -> tf.data.Dataset:
        images, labels = load_split(part)
        records = tf.data.Dataset.from_tensor_slices(({"image": images}, labels))
        records = self.context.wrap_dataset(records)
        if shuffle:
            records = records.shuffle(TRAINING_RECORDS)
        records = records.batch(self.context.get_per_slot_batch_size())
        return records.map(
            lambda features, label: ({"image": tf.cast(features["image"], tf.float32)}, label)
        )

    def build_serving_input_receiver_fns(self) -> dict[str, Any]:
        return {"digits": serving_input_receiver}


def serving_input_receiver() -> export.ServingInputReceiver:
    """Define the input of a served model: images ``(record, 8, 8), float32, 0 to 16``."""
    images = tf1.placeholder(tf.float32, [None, 8, 8], name="image")
    return export.ServingInputReceiver({"image": images}, {"image": images})
