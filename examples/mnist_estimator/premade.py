"""A premade estimator of TensorFlow 2.15, ``tf.estimator.DNNClassifier``, on MNIST."""

from __future__ import annotations

from typing import Any

import tensorflow as tf
from mnist import NUM_CLASSES, SIZE, make_input_fn

from detcore_estimator import EstimatorTrial, EstimatorTrialContext

tf1 = tf.compat.v1


class PremadeMNISTTrial(EstimatorTrial):
    """Dense layers from TensorFlow's premade estimator."""

    def __init__(self, context: EstimatorTrialContext) -> None:
        self.context = context
        self._columns = [tf.feature_column.numeric_column("image", shape=(SIZE, SIZE, 1))]

    def build_estimator(self) -> Any:
        optimizer = tf1.train.AdamOptimizer(self.context.get_hparam("learning_rate"))
        return tf1.estimator.DNNClassifier(
            hidden_units=self.context.get_hparam("hidden_units"),
            feature_columns=self._columns,
            n_classes=NUM_CLASSES,
            optimizer=self.context.wrap_optimizer(optimizer),
            dropout=self.context.get_hparam("dropout"),
        )

    def build_train_spec(self) -> Any:
        return tf.estimator.TrainSpec(make_input_fn(self.context, "train", shuffle=True))

    def build_validation_spec(self) -> Any:
        return tf.estimator.EvalSpec(make_input_fn(self.context, "t10k"), steps=None)

    def build_serving_input_receiver_fns(self) -> dict[str, Any]:
        features = tf.feature_column.make_parse_example_spec(self._columns)
        return {"examples": tf.estimator.export.build_parsing_serving_input_receiver_fn(features)}
