"""A classifier with dropout, Adam and a shuffled pipeline."""

# config: searcher.metric=loss

import numpy as np
import tensorflow as tf

import detcore_estimator as de

EPOCHS = 4
tf1 = tf.compat.v1
rng = np.random.default_rng(0)
x = rng.normal(size=(96, 6)).astype("float32")
y = (x[:, 0] * x[:, 1] > 0).astype("int32")


class Trial(de.EstimatorTrial):
    def __init__(self, context):
        self.context = context

    def build_estimator(self):
        return de.Estimator(self.model_fn, params={"width": 16})

    def build_train_spec(self):
        return de.TrainSpec(lambda: self.input_fn().shuffle(96).batch(16).prefetch(1))

    def build_validation_spec(self):
        return de.EvalSpec(lambda: self.input_fn().batch(32), steps=None)

    def input_fn(self):
        return self.context.wrap_dataset(tf.data.Dataset.from_tensor_slices((x, y)))

    def model_fn(self, features, labels, mode, params):
        w1 = tf1.get_variable("w1", [6, params["width"]])
        b1 = tf1.get_variable("b1", [params["width"]], initializer=tf1.zeros_initializer())
        hidden = tf.nn.relu(features @ w1 + b1)
        if mode == de.ModeKeys.TRAIN:
            hidden = tf.nn.dropout(hidden, rate=0.3)
        logits = hidden @ tf1.get_variable("w2", [params["width"], 2])
        loss = tf1.losses.sparse_softmax_cross_entropy(labels, logits)
        optimizer = self.context.wrap_optimizer(tf1.train.AdamOptimizer(0.01))
        train_op = optimizer.minimize(loss, tf1.train.get_global_step())
        accuracy = tf1.metrics.accuracy(labels, tf.argmax(logits, 1))
        return de.EstimatorSpec(
            mode, loss=loss, train_op=train_op, eval_metric_ops={"accuracy": accuracy}
        )
