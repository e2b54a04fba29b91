"""A decaying learning rate, clipped gradients and moving averages in the graph."""

# config: searcher.metric=loss

import numpy as np
import tensorflow as tf

import detcore_estimator as de

EPOCHS = 4
tf1 = tf.compat.v1
rng = np.random.default_rng(1)
x = rng.normal(size=(96, 4)).astype("float32")
y = np.sin(x.sum(1, keepdims=True)).astype("float32")


class Trial(de.EstimatorTrial):
    def __init__(self, context):
        self.context = context

    def build_estimator(self):
        return de.Estimator(self.model_fn)

    def build_train_spec(self):
        return de.TrainSpec(lambda: self.input_fn().shuffle(40).batch(16, drop_remainder=True))

    def build_validation_spec(self):
        return de.EvalSpec(lambda: self.input_fn().batch(32), steps=None)

    def input_fn(self):
        return self.context.wrap_dataset(tf.data.Dataset.from_tensor_slices((x, y)))

    def model_fn(self, features, labels, mode):
        w1, w2 = tf1.get_variable("w1", [4, 16]), tf1.get_variable("w2", [16, 1])
        predictions = tf.tanh(features @ w1) @ w2
        loss = tf.reduce_mean(tf.square(predictions - labels))
        if mode != de.ModeKeys.TRAIN:
            return de.EstimatorSpec(mode, loss=loss)
        step = tf1.train.get_global_step()
        rate = tf1.train.exponential_decay(0.05, step, 6, 0.7, staircase=True)
        optimizer = self.context.wrap_optimizer(tf1.train.MomentumOptimizer(rate, 0.9))
        pairs = optimizer.compute_gradients(loss)
        gradients, _ = tf.clip_by_global_norm([g for g, _ in pairs], 1.0)
        apply = optimizer.apply_gradients(zip(gradients, [v for _, v in pairs]), step)
        averages = tf1.train.ExponentialMovingAverage(0.9, step)
        with tf1.control_dependencies([apply]):
            train_op = averages.apply([w1, w2])
        tf1.summary.scalar("rate", rate)
        return de.EstimatorSpec(mode, loss=loss, train_op=train_op)
