"""Fine-tuning in two calls of fit: frozen base first, then everything with a small rate."""

import keras
import numpy as np

import detcore_keras

EPOCHS = 3
keras.utils.set_random_seed(6)
x = np.random.normal(size=(96, 10)).astype("float32")
y = (x[:, :5].sum(1) > 0).astype("float32")
base = keras.Sequential(
    [
        keras.Input((10,)),
        keras.layers.Dense(16),
        keras.layers.BatchNormalization(),
        keras.layers.ReLU(),
    ],
)
base.trainable = False
inputs = keras.Input((10,))
model = keras.Model(inputs, keras.layers.Dense(1)(base(inputs, training=False)))
loss = keras.losses.BinaryCrossentropy(from_logits=True)
model.compile(keras.optimizers.Adam(0.01), loss)
first = detcore_keras.fit(model, x, y, batch_size=16, epochs=EPOCHS, save_every=4, verbose=0)
base.trainable = True
schedule = keras.optimizers.schedules.ExponentialDecay(0.002, 6, 0.5)
model.compile(keras.optimizers.Adam(schedule), loss)
second = detcore_keras.fit(model, x, y, batch_size=16, epochs=EPOCHS, save_every=4, verbose=0)
print("final", first.history["loss"][-1], second.history["loss"][-1])
