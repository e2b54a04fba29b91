"""Train a model on each of three folds with `DetcoreCallback`, like a k-fold tutorial.

The first argument is the fold and epoch in which the process kills itself, such as 1-2.
"""

import os
import signal
import sys

import keras
import numpy as np

from detcore import core
from detcore_keras import DetcoreCallback

kill_at = sys.argv[1] if len(sys.argv) > 1 else ""


class Kill(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        if f"{fold}-{epoch}" == kill_at:
            context.checkpoint.wait()
            os.kill(os.getpid(), signal.SIGKILL)


keras.utils.set_random_seed(1)
x = np.random.default_rng(0).normal(size=(48, 4)).astype("float32")
y = x.sum(1, keepdims=True)
scores = []
for fold in range(3):
    held_out = np.arange(48) // 16 == fold
    model = keras.Sequential(
        [keras.Input((4,)), keras.layers.Dense(8, activation="relu"), keras.layers.Dense(1)]
    )
    model.compile(keras.optimizers.Adam(0.3 if fold == 0 else 0.01), "mse")
    with core.init(resume=True) as context:
        callback = DetcoreCallback(context)
        history = model.fit(
            x[~held_out],
            y[~held_out],
            batch_size=8,
            epochs=4,
            initial_epoch=callback.initial_epoch,
            shuffle=False,
            validation_data=(x[held_out], y[held_out]),
            verbose=0,
            callbacks=[
                keras.callbacks.EarlyStopping(patience=0, restore_best_weights=True),
                callback,
                Kill(),
            ],
        )
    losses = history.history["val_loss"]
    scores.append((len(losses), losses[-1], model.evaluate(x[held_out], y[held_out], verbose=0)))
print(scores)
