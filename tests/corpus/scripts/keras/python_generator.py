"""A Python generator that yields batches for ever, with steps_per_epoch."""

import keras
import numpy as np

import detcore_keras

EPOCHS = 3


def batches():
    rng = np.random.default_rng(10)
    while True:
        x = rng.normal(size=(16, 3)).astype("float32")
        yield x, x.sum(1, keepdims=True)


keras.utils.set_random_seed(10)
model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
history = detcore_keras.fit(
    model, batches(), steps_per_epoch=6, epochs=EPOCHS, save_every=4, verbose=0
)
print("final", history.history["loss"])
