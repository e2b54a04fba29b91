"""A convolutional network with Keras's augmentation layers and dropout."""

import keras
import numpy as np

from detcore_keras import TFKerasTrial

EPOCHS = 4
rng = np.random.default_rng(0)
images = rng.random((112, 8, 8, 1)).astype("float32")
labels = (images.mean((1, 2, 3)) > 0.5).astype("int32")


class Trial(TFKerasTrial):
    def __init__(self, context):
        self.context = context

    def build_model(self):
        model = keras.Sequential(
            [
                keras.Input((8, 8, 1)),
                keras.layers.RandomFlip("horizontal"),
                keras.layers.RandomTranslation(0.1, 0.1),
                keras.layers.Conv2D(4, 3, activation="relu"),
                keras.layers.BatchNormalization(),
                keras.layers.Flatten(),
                keras.layers.Dropout(0.3),
                keras.layers.Dense(2),
            ]
        )
        model = self.context.wrap_model(model)
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.Adam(0.01), loss, metrics=["accuracy"])
        return model

    def build_training_data_loader(self):
        return images[:96], labels[:96]

    def build_validation_data_loader(self):
        return images[96:], labels[96:]
