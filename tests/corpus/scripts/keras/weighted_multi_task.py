"""Two outputs with loss weights, sample weights, an EMA in the optimizer and steps in groups."""

import keras
import numpy as np

import detcore_keras

EPOCHS = 4
keras.utils.set_random_seed(12)
x = np.random.normal(size=(96, 6)).astype("float32")
amounts = x.sum(1, keepdims=True)
kinds = (x[:, 0] > 0).astype("int32")
inputs = keras.Input((6,))
trunk = keras.layers.Dropout(0.1)(keras.layers.Dense(16, activation="relu")(inputs))
model = keras.Model(
    inputs,
    {
        "amount": keras.layers.Dense(1, name="amount")(trunk),
        "kind": keras.layers.Dense(2, name="kind")(trunk),
    },
)
model.compile(
    keras.optimizers.Adam(0.01, use_ema=True, ema_momentum=0.9),
    {"amount": "mse", "kind": keras.losses.SparseCategoricalCrossentropy(from_logits=True)},
    loss_weights={"amount": 0.5, "kind": 1.0},
    steps_per_execution=2,
)
history = detcore_keras.fit(
    model,
    x,
    {"amount": amounts, "kind": kinds},
    batch_size=16,
    epochs=EPOCHS,
    save_every=4,
    verbose=0,
    callbacks=[keras.callbacks.TerminateOnNaN()],
)
print("final", history.history["loss"][-1])
