"""A shuffled `tf.data` pipeline with a random map, and steps per epoch."""

import keras
import numpy as np
import tensorflow as tf

import detcore_keras

EPOCHS = 4
keras.utils.set_random_seed(8)
x = np.random.normal(size=(96, 4)).astype("float32")
y = x.prod(1, keepdims=True)
data = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(96, seed=8).batch(16).prefetch(2)
model = keras.Sequential(
    [keras.Input((4,)), keras.layers.Dense(24, activation="relu"), keras.layers.Dense(1)]
)
model.compile(keras.optimizers.Adam(0.01, clipnorm=1.0), "huber")
history = detcore_keras.fit(
    model, data, epochs=EPOCHS, save_every=4, validation_data=data.take(2), verbose=0
)
print("final", history.history["loss"][-1])
