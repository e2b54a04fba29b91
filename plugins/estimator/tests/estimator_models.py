"""A small regression model for the tests of the stand-alone Estimator."""

from __future__ import annotations

from typing import Any

import numpy as np

import detcore_estimator as de
from detcore_estimator._tf import tf, tf1

RECORDS = 48
BATCH = 8
_random = np.random.RandomState(7)
FEATURES = _random.rand(RECORDS, 4).astype(np.float32)
LABELS = FEATURES.sum(axis=1, keepdims=True).astype(np.float32)


def train_input() -> Any:
    """Endless shuffled batches."""
    data = tf.data.Dataset.from_tensor_slices(({"x": FEATURES}, LABELS))
    return data.shuffle(RECORDS, seed=5).repeat().batch(BATCH)


def eval_input() -> Any:
    """The records once, in order."""
    return tf.data.Dataset.from_tensor_slices(({"x": FEATURES}, LABELS)).batch(BATCH)


def model_fn(features: Any, labels: Any, mode: str, params: Any) -> Any:
    """Build two layers with dropout, trained by Adam; works with both kinds of EstimatorSpec."""
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


def make(model_dir: Any, function: Any = model_fn, **config: Any) -> de.Estimator:
    """Return an estimator that saves only at the beginning and the end."""
    config = {"tf_random_seed": 1, "save_checkpoints_steps": 10_000, **config}
    params = {} if function is model_fn else None
    return de.Estimator(function, str(model_dir), de.RunConfig(**config), params)


def serving_input() -> Any:
    """Requests that hold the features."""
    return de.export.build_raw_serving_input_receiver_fn(
        {"x": tf.TensorSpec([None, 4], tf.float32)}
    )()
