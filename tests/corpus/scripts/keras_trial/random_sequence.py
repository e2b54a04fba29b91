"""A `Sequence` with augmentation and an order that it shuffles itself, and class weights."""

import random

import keras
import numpy as np

from detcore_keras import TFKerasTrial

EPOCHS = 4
rng = np.random.default_rng(5)
x = rng.normal(size=(96, 4)).astype("float32")
y = (x.sum(1) > 1).astype("int32")


class Augmented(keras.utils.Sequence):
    def __init__(self):
        super().__init__()
        self.order = np.arange(96)

    def __len__(self):
        return 6

    def __getitem__(self, index):
        rows = self.order[index * 16 : (index + 1) * 16]
        noise = np.random.normal(0, 0.1, size=(16, 4)).astype("float32")
        features = x[rows] * random.uniform(0.9, 1.1) + noise
        return features, y[rows], np.where(y[rows] == 1, 3.0, 1.0)

    def on_epoch_end(self):
        np.random.shuffle(self.order)


class Trial(TFKerasTrial):
    def __init__(self, context):
        self.context = context

    def build_model(self):
        model = keras.Sequential(
            [keras.Input((4,)), keras.layers.Dense(8, "tanh"), keras.layers.Dense(1, "sigmoid")]
        )
        model = self.context.wrap_model(model)
        model.compile(keras.optimizers.Nadam(0.01), "binary_crossentropy")
        return model

    def build_training_data_loader(self):
        return Augmented()

    def build_validation_data_loader(self):
        return x, y
