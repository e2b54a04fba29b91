"""A shuffled `tf.data` pipeline with interleaving, and a cosine schedule."""

import keras
import numpy as np
import tensorflow as tf

from detcore_keras import TFKerasTrial

EPOCHS = 4
rng = np.random.default_rng(4)
x = rng.normal(size=(96, 5)).astype("float32")
y = np.abs(x).sum(1, keepdims=True).astype("float32")


class Trial(TFKerasTrial):
    def __init__(self, context):
        self.context = context

    def build_model(self):
        inputs = keras.Input((5,))
        hidden = keras.layers.Dense(16, activation="gelu")(inputs)
        hidden = keras.layers.GaussianNoise(0.1)(hidden)
        outputs = keras.layers.Dense(1)(hidden)
        model = self.context.wrap_model(keras.Model(inputs, outputs))
        schedule = keras.optimizers.schedules.CosineDecay(0.05, 24)
        model.compile(keras.optimizers.Adam(schedule, clipnorm=1.0), "mae", metrics=["mse"])
        return model

    def build_training_data_loader(self):
        data = self.context.wrap_dataset(tf.data.Dataset.from_tensor_slices((x, y)))
        data = data.shuffle(50).map(lambda a, b: (a * 1.1, b)).batch(16, drop_remainder=True)
        return data.prefetch(2)

    def build_validation_data_loader(self):
        data = self.context.wrap_dataset(tf.data.Dataset.from_tensor_slices((x, y)))
        return data.batch(48)
