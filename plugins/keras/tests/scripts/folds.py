"""Train a model on each of three folds, like a k-fold tutorial.

The arguments are the fold and a stop in it; see ``stops.py``.
"""

import sys

import keras
import numpy as np
import stops

from detcore_keras import fit

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
    callbacks = [keras.callbacks.EarlyStopping(patience=0, restore_best_weights=True)]
    if sys.argv[1] == str(fold):
        callbacks.append(stops.StopAtBatch())
    history = fit(
        model, x[~held_out], y[~held_out], batch_size=8, epochs=4, verbose=0, save_every=3,
        validation_data=(x[held_out], y[held_out]), callbacks=callbacks,
    )  # fmt: skip
    losses = history.history["val_loss"]
    scores.append((len(losses), losses[-1], model.evaluate(x[held_out], y[held_out], verbose=0)))
stops.print_result(model, history, scores)
