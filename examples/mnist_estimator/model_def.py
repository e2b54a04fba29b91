"""A convolutional network on MNIST in a model function, for TensorFlow 2.15 and later.

`premade.py` trains a premade estimator of TensorFlow 2.15 on the same data.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf
from mnist import NUM_CLASSES, SIZE, make_input_fn

from detcore_estimator import (
    Estimator,
    EstimatorSpec,
    EstimatorTrial,
    EstimatorTrialContext,
    EvalSpec,
    ModeKeys,
    TrainSpec,
    export,
)

tf1 = tf.compat.v1


def create_variables(name: str, shape: list[int]) -> tuple[tf.Variable, tf.Variable]:
    """Create the kernel of a layer with a shape, and its bias."""
    with tf1.variable_scope(name):
        kernel = tf1.get_variable("kernel", shape)
        bias = tf1.get_variable("bias", shape[-1:], initializer=tf1.zeros_initializer())
    return kernel, bias


def compute_logits(images: tf.Tensor, params: dict[str, Any], *, training: bool) -> tf.Tensor:
    """Return logits ``(record, 10)`` for images ``(record, 28, 28, 1)``."""
    filters, units = params["filters"], params["dense"]
    kernel, bias = create_variables("convolution", [5, 5, 1, filters])
    hidden = tf.nn.relu(tf.nn.conv2d(images, kernel, strides=2, padding="SAME") + bias)
    hidden = tf.nn.max_pool2d(hidden, ksize=2, strides=2, padding="SAME")
    hidden = tf.reshape(hidden, [-1, 7 * 7 * filters])
    kernel, bias = create_variables("hidden", [7 * 7 * filters, units])
    hidden = tf.nn.relu(hidden @ kernel + bias)
    if training:
        hidden = tf.nn.dropout(hidden, rate=params["dropout"])
    kernel, bias = create_variables("logits", [units, NUM_CLASSES])
    return hidden @ kernel + bias


class MNISTTrial(EstimatorTrial):
    """A network with one convolution and one hidden layer."""

    def __init__(self, context: EstimatorTrialContext) -> None:
        self.context = context

    def build_estimator(self) -> Estimator:
        return Estimator(self._model_fn, params=self.context.get_hparams())

    def _model_fn(
        self, features: dict[str, tf.Tensor], labels: Any, mode: str, params: dict[str, Any]
    ) -> EstimatorSpec:
        logits = compute_logits(features["image"], params, training=mode == ModeKeys.TRAIN)
        predictions = {"digit": tf.argmax(logits, axis=1), "probabilities": tf.nn.softmax(logits)}
        if mode == ModeKeys.PREDICT:
            outputs = {"serving_default": export.PredictOutput(predictions)}
            return EstimatorSpec(mode, predictions=predictions, export_outputs=outputs)
        loss = tf.reduce_mean(
            tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
        )
        if mode == ModeKeys.EVAL:
            accuracy = tf1.metrics.accuracy(labels, predictions["digit"])
            return EstimatorSpec(mode, loss=loss, eval_metric_ops={"accuracy": accuracy})
        optimizer = tf1.train.AdamOptimizer(params["learning_rate"])
        optimizer = self.context.wrap_optimizer(optimizer)
        train_op = optimizer.minimize(loss, global_step=tf1.train.get_global_step())
        return EstimatorSpec(mode, loss=loss, train_op=train_op)

    def build_train_spec(self) -> TrainSpec:
        return TrainSpec(make_input_fn(self.context, "train", shuffle=True))

    def build_validation_spec(self) -> EvalSpec:
        return EvalSpec(make_input_fn(self.context, "t10k"), steps=None)

    def build_serving_input_receiver_fns(self) -> dict[str, Any]:
        return {"pixels": pixels_receiver, "examples": examples_receiver}


def pixels_receiver() -> export.ServingInputReceiver:
    """Define the input of a served model: images ``(record, 28, 28, 1), float32 in [0, 1]``."""
    images = tf1.placeholder(tf.float32, [None, SIZE, SIZE, 1], name="image")
    return export.ServingInputReceiver({"image": images}, {"image": images})


def examples_receiver() -> export.ServingInputReceiver:
    """Define the input of a served model: serialized ``tf.train.Example``, ``(record,)``."""
    features = {"image": tf.io.FixedLenFeature([SIZE, SIZE, 1], tf.float32)}
    return export.build_parsing_serving_input_receiver_fn(features)()
