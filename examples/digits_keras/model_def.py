"""Handwritten digits: 1797 scans of 8 x 8 pixels, included in scikit-learn.

The data is a ``tf.data.Dataset``, wrapped with ``self.context.wrap_dataset``.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits

from detcore_keras import KerasTrial, TFKerasTrialContext, callbacks

keras = tf.keras
layers = keras.layers

TRAINING_RECORDS = 1437  # four fifths


def load_split(part: str) -> tuple[np.ndarray, np.ndarray]:
    """Return images ``(record, 8, 8, 1), float32 in [0, 1]`` and labels ``(record,), int32``.

    The split is fixed, because it must not depend on the trial's seed.
    """
    digits = load_digits()
    order = np.random.RandomState(0).permutation(len(digits.target))
    indices = order[:TRAINING_RECORDS] if part == "train" else order[TRAINING_RECORDS:]
    images = (digits.images[indices] / 16).astype("float32")[..., np.newaxis]
    return images, digits.target[indices].astype("int32")


class DigitsTrial(KerasTrial):
    """A small convolutional network on scikit-learn's digits."""

    def __init__(self, context: TFKerasTrialContext) -> None:
        self.context = context

    def build_model(self) -> Any:
        model = keras.Sequential(
            [
                keras.Input((8, 8, 1)),
                layers.Conv2D(32, 3, padding="same", activation="relu"),
                layers.MaxPooling2D(),
                layers.Conv2D(64, 3, padding="same", activation="relu"),
                layers.Flatten(),
                layers.Dropout(self.context.get_hparam("dropout")),
                layers.Dense(10),
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

    def build_training_data_loader(self) -> tf.data.Dataset:
        records = tf.data.Dataset.from_tensor_slices(load_split("train"))
        records = self.context.wrap_dataset(records)
        records = records.shuffle(TRAINING_RECORDS, seed=self.context.get_trial_seed())
        return records.batch(self.context.get_per_slot_batch_size())

    def build_validation_data_loader(self) -> tf.data.Dataset:
        records = tf.data.Dataset.from_tensor_slices(load_split("validate"))
        return self.context.wrap_dataset(records).batch(self.context.get_per_slot_batch_size())

    def keras_callbacks(self) -> list[Any]:
        return [callbacks.ReduceLROnPlateau(monitor="val_loss", factor=0.5, patience=3)]
