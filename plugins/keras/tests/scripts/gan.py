"""Train a GAN in ``fit``, with a custom step and two optimizers that the first batch builds.

The arguments are ``eager``, ``graph`` or ``executions`` (two steps in each execution), and a stop;
see ``stops.py``.
"""

import sys

import keras
import numpy as np
import tensorflow as tf
from stops import StopAtEpoch, digest, print_result

from detcore_keras import fit


class Change(keras.callbacks.Callback):
    """Changes a rate and freezes a layer at the beginning of epochs."""

    def on_epoch_begin(self, epoch, logs=None):
        self.model.g_optimizer.learning_rate.assign(0.01 / (1 + epoch))
        if epoch == 2:
            self.model.d.layers[0].trainable = False


class GAN(keras.Model):
    def __init__(self):
        super().__init__()
        layers = keras.layers
        self.d = keras.Sequential([keras.Input((4,)), layers.Dense(8, "relu"), layers.Dense(1)])
        self.g = keras.Sequential([keras.Input((3,)), layers.Dense(8, "relu"), layers.Dense(4)])
        self.noise = tf.random.Generator.from_seed(5)
        self.d_optimizer = keras.optimizers.Adam(0.01)
        self.g_optimizer = keras.optimizers.Adam(0.02)

    def train_step(self, real):
        loss = keras.losses.BinaryCrossentropy(from_logits=True)
        count = tf.shape(real)[0]
        zeros, ones = tf.zeros((count, 1)), tf.ones((count, 1))
        fake = self.g(self.noise.normal((count, 3)))
        with tf.GradientTape() as tape:
            scores = self.d(tf.concat([fake, real], 0), training=True)
            d_loss = loss(tf.concat([ones, zeros], 0), scores)
        self.update(self.d_optimizer, tape, d_loss, self.d)
        with tf.GradientTape() as tape:
            g_loss = loss(zeros, self.d(self.g(self.noise.normal((count, 3)))))
        self.update(self.g_optimizer, tape, g_loss, self.g)
        return {"d_loss": d_loss, "g_loss": g_loss}

    def update(self, optimizer, tape, loss, part):
        variables = part.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))


keras.utils.set_random_seed(1)
x = np.random.default_rng(0).normal(size=(40, 4)).astype("float32")
model = GAN()
model.compile(
    run_eagerly=sys.argv[1] == "eager",
    steps_per_execution=2 if sys.argv[1] == "executions" else 1,
)
history = fit(
    model, x, batch_size=8, epochs=5, verbose=0, save_every=4, callbacks=[Change(), StopAtEpoch()]
)
values = [model.noise.state, *model.weights]
for optimizer in (model.d_optimizer, model.g_optimizer):
    variables = optimizer.variables
    values += variables() if callable(variables) else variables
print_result(model, history, digest(values))
