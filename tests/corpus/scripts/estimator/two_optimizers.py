"""Two optimizers for two parts of the graph, noise layers and an epoch of repeated data."""

# config: searcher.metric=loss records_per_epoch=96

import numpy as np
import tensorflow as tf

import detcore_estimator as de

EPOCHS = 4
tf1 = tf.compat.v1
rng = np.random.default_rng(2)
x = rng.normal(size=(96, 5)).astype("float32")


class Trial(de.EstimatorTrial):
    def __init__(self, context):
        self.context = context

    def build_estimator(self):
        return de.Estimator(self.model_fn)

    def build_train_spec(self):
        return de.TrainSpec(lambda: self.input_fn().shuffle(30).batch(16).repeat())

    def build_validation_spec(self):
        return de.EvalSpec(lambda: self.input_fn().batch(48), steps=None)

    def input_fn(self):
        return self.context.wrap_dataset(tf.data.Dataset.from_tensor_slices(x))

    def model_fn(self, features, labels, mode):
        with tf1.variable_scope("encoder"):
            noise = tf.random.normal(tf.shape(features), stddev=0.1)
            noisy = features + noise if mode == "train" else features
            code = tf.tanh(noisy @ tf1.get_variable("w", [5, 2]))
        with tf1.variable_scope("decoder"):
            decoded = code @ tf1.get_variable("w", [2, 5])
        loss = tf.reduce_mean(tf.square(decoded - features))
        if mode != "train":
            return de.EstimatorSpec(mode, loss=loss)
        first = self.context.wrap_optimizer(tf1.train.AdagradOptimizer(0.1))
        second = self.context.wrap_optimizer(tf1.train.RMSPropOptimizer(0.01))
        step = tf1.train.get_global_step()
        train_op = tf.group(
            first.minimize(loss, step, var_list=tf1.trainable_variables("encoder")),
            second.minimize(loss, var_list=tf1.trainable_variables("decoder")),
        )
        return de.EstimatorSpec(mode, loss=loss, train_op=train_op)
