"""A classifier with dropout, validation data and shuffled arrays."""

import keras
import numpy as np

import detcore_keras

EPOCHS = 4
keras.utils.set_random_seed(1)
x = np.random.normal(size=(112, 8)).astype("float32")
y = (x[:, 0] + x[:, 1] > 0).astype("int32")
model = keras.Sequential(
    [
        keras.Input((8,)),
        keras.layers.Dense(32, activation="relu"),
        keras.layers.Dropout(0.3),
        keras.layers.Dense(2),
    ]
)
model.compile(
    keras.optimizers.Adam(0.01),
    keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    metrics=["accuracy"],
)
history = detcore_keras.fit(
    model,
    x[:96],
    y[:96],
    batch_size=16,
    epochs=EPOCHS,
    save_every=4,
    validation_data=(x[96:], y[96:]),
    verbose=0,
)
print("final", {name: values[-1] for name, values in history.history.items()})
