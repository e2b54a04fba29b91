"""Freeze layers, and change a variable and a number of the loss, while ``fit`` trains.

The arguments are ``eager``, ``graph`` or ``own`` (a custom step with a separate optimizer), and a
stop; see ``stops.py``.
"""

import sys

import keras
import numpy as np
import tensorflow as tf
from stops import StopAtEpoch, print_result

from detcore_keras import fit


class Freeze(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        if epoch == 2:
            self.model.layers[0].trainable = False
            self.model.layers[1].trainable = False

    def on_epoch_end(self, epoch, logs=None):
        global scale
        scale *= 0.9
        weight.assign(weight * 1.5 * scale)


scale = 1.0
weight = tf.Variable(0.1, trainable=False)


def loss(y, prediction):
    error = tf.square(y - prediction) + weight * tf.abs(prediction)
    return error * scale if tf.executing_eagerly() else error


class OwnStep(keras.Sequential):
    def train_step(self, data):
        with tf.GradientTape() as tape:
            value = tf.reduce_mean(loss(data[1], self(data[0], training=True)))
        gradients = tape.gradient(value, self.trainable_variables)
        self.own.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        return {"loss": value}


keras.utils.set_random_seed(1)
x = np.random.default_rng(0).normal(size=(32, 4)).astype("float32")
# Without an Input, so that the first batch creates the weights.
layers = [keras.layers.Dense(8), keras.layers.BatchNormalization(), keras.layers.Dense(1)]
if sys.argv[1] == "own":
    model = OwnStep([keras.Input((4,)), *layers])
    model.own = keras.optimizers.SGD(0.1, momentum=0.9)
    model.own.build(model.trainable_variables)
    model.compile()  # with an optimizer that nothing uses
else:
    model = keras.Sequential(layers)
    model.compile(keras.optimizers.SGD(0.1), loss, run_eagerly=sys.argv[1] == "eager")
history = fit(
    model, x, x.sum(1, keepdims=True), batch_size=8, epochs=5, shuffle=False, verbose=0,
    save_every=3, callbacks=[Freeze(), StopAtEpoch()],
)  # fmt: skip
print_result(model, history, [layer.trainable for layer in layers], scale)
