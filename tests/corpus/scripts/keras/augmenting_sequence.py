"""A Sequence with NumPy and `random` augmentation that reshuffles itself after each epoch."""

import random

import keras
import numpy as np

import detcore_keras

EPOCHS = 4


class Images(keras.utils.Sequence):
    def __init__(self, images, labels):
        super().__init__()
        self.images, self.labels = images, labels
        self.order = np.arange(len(images))

    def __len__(self):
        return len(self.images) // 16

    def __getitem__(self, index):
        rows = self.order[16 * index : 16 * (index + 1)]
        images = self.images[rows] + np.random.normal(0, 0.05, (16, 6, 6, 1))
        if random.random() < 0.5:
            images = images[:, :, ::-1]
        return images.astype("float32"), self.labels[rows]

    def on_epoch_end(self):
        np.random.shuffle(self.order)


keras.utils.set_random_seed(9)
images = np.random.random((96, 6, 6, 1))
labels = (images[:, :3].mean((1, 2, 3)) > 0.5).astype("int32")
model = keras.Sequential(
    [
        keras.Input((6, 6, 1)),
        keras.layers.Conv2D(4, 3, activation="relu"),
        keras.layers.Flatten(),
        keras.layers.Dense(1, activation="sigmoid"),
    ]
)
model.compile(keras.optimizers.Adam(0.01), "binary_crossentropy")
history = detcore_keras.fit(model, Images(images, labels), epochs=EPOCHS, save_every=4, verbose=0)
print("final", history.history["loss"])
