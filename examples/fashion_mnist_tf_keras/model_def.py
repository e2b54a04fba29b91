"""Fashion-MNIST: 70,000 images of clothes, 28 x 28 pixels, in ten classes.

The data is a tuple of NumPy arrays, which detcore shuffles and splits into batches.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from idx import read_images, read_labels

from detcore.errors import DataError
from detcore_keras import TFKerasTrial, TFKerasTrialContext

keras = tf.keras
layers = keras.layers

NUM_CLASSES = 10
SIZE = 28


class FashionMNISTTrial(TFKerasTrial):
    """A small convolutional network on Fashion-MNIST."""

    def __init__(self, context: TFKerasTrialContext) -> None:
        self.context = context

    def build_model(self) -> Any:
        model = keras.Sequential(
            [
                keras.Input((SIZE, SIZE, 1)),
                layers.Conv2D(self.context.get_hparam("filters"), 3, activation="relu"),
                layers.MaxPooling2D(),
                layers.Flatten(),
                layers.Dense(self.context.get_hparam("dense"), activation="relu"),
                layers.Dropout(self.context.get_hparam("dropout")),
                layers.Dense(NUM_CLASSES),
            ]
        )
        model = self.context.wrap_model(model)
        optimizer = keras.optimizers.Adam(self.context.get_hparam("learning_rate"))
        optimizer = self.context.wrap_optimizer(optimizer)
        model.compile(
            optimizer=optimizer,
            loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=["accuracy"],
        )
        return model

    def build_training_data_loader(self) -> tuple[np.ndarray, np.ndarray]:
        return self._load("train")

    def build_validation_data_loader(self) -> tuple[np.ndarray, np.ndarray]:
        return self._load("t10k")

    def _load(self, part: str) -> tuple[np.ndarray, np.ndarray]:
        """Return images ``(record, 28, 28, 1), float32 in [0, 1]`` and labels ``(record,)``."""
        data = self.context.get_data_config()
        folder = Path(data["dir"]).expanduser()
        sums = data.get("md5") or {}
        images_file, labels_file = f"{part}-images-idx3-ubyte.gz", f"{part}-labels-idx1-ubyte.gz"
        images = read_images(folder / images_file, md5=sums.get(images_file))
        labels = read_labels(
            folder / labels_file, num_classes=NUM_CLASSES, md5=sums.get(labels_file)
        )
        if images.shape[1:] != (SIZE, SIZE) or len(images) != len(labels):
            raise DataError(
                f"{folder}: {images_file} has images of shape {images.shape} and {labels_file} has "
                f"{len(labels)} labels; Fashion-MNIST has one label for each image of "
                f"{SIZE} x {SIZE} pixels.\nThe files do not match."
            )
        return (images / np.float32(255))[..., np.newaxis], labels.astype("int32")
