"""CIFAR-10: 60,000 colour images of 32 x 32 pixels in ten classes.

The data is a ``keras.utils.Sequence`` that shifts and mirrors the images. Background processes
prepare the batches (`SequenceAdapter`).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from cifar_binary import IMAGE_SHAPE, NUM_CLASSES, RecordFiles, find_files

from detcore_keras import SequenceAdapter, TFKerasTrial, TFKerasTrialContext

keras = tf.keras
layers = keras.layers

SHIFT = 4  # maximum shift in pixels


class Images(keras.utils.Sequence):  # type: ignore[misc]  # Keras has no types
    """Batches of images, ``(record, 32, 32, 3), float32 in [0, 1]``, and labels.

    Args:
        records: The records.
        batch_size: Records per batch. The last batch may be smaller.
        augment: Whether to shift and mirror images at random. detcore seeds NumPy's generator for
            each batch, so a resumed run uses the same images.
    """

    def __init__(self, records: RecordFiles, batch_size: int, *, augment: bool) -> None:
        super().__init__()
        self._records = records
        self._batch_size = batch_size
        self._augment = augment

    def __len__(self) -> int:
        return -(-len(self._records) // self._batch_size)

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        start = index * self._batch_size
        stop = min(start + self._batch_size, len(self._records))
        images, labels = self._records.read(np.arange(start, stop))
        if self._augment:
            images = np.stack([shift_and_mirror(image) for image in images])
        return images.astype("float32") / 255, labels


def shift_and_mirror(image: np.ndarray) -> np.ndarray:
    """Shift an image by up to 4 pixels in each direction, and mirror it at random."""
    down, right = np.random.randint(0, 2 * SHIFT + 1, size=2)
    padded = np.pad(image, ((SHIFT, SHIFT), (SHIFT, SHIFT), (0, 0)))
    shifted = padded[down : down + image.shape[0], right : right + image.shape[1]]
    return shifted[:, ::-1] if np.random.randint(2) else shifted


class CIFARTrial(TFKerasTrial):
    """A convolutional network on CIFAR-10."""

    def __init__(self, context: TFKerasTrialContext) -> None:
        self.context = context

    def build_model(self) -> Any:
        model = keras.Sequential([keras.Input(IMAGE_SHAPE)])
        for filters in (32, 64):
            model.add(layers.Conv2D(filters, 3, padding="same", activation="relu"))
            model.add(layers.Conv2D(filters, 3, activation="relu"))
            model.add(layers.MaxPooling2D())
            model.add(layers.Dropout(self.context.get_hparam("conv_dropout")))
        model.add(layers.Flatten())
        model.add(layers.Dense(512, activation="relu"))
        model.add(layers.Dropout(self.context.get_hparam("dense_dropout")))
        model.add(layers.Dense(NUM_CLASSES))
        model = self.context.wrap_model(model)
        optimizer = keras.optimizers.RMSprop(self.context.get_hparam("learning_rate"))
        optimizer = self.context.wrap_optimizer(optimizer)
        model.compile(
            optimizer=optimizer,
            loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=["accuracy"],
        )
        return model

    def build_training_data_loader(self) -> SequenceAdapter:
        images = Images(self._records("train"), self._batch_size(), augment=True)
        return SequenceAdapter(images, workers=2, use_multiprocessing=True)

    def build_validation_data_loader(self) -> Images:
        return Images(self._records("test"), self._batch_size(), augment=False)

    def _records(self, part: str) -> RecordFiles:
        folder = Path(self.context.get_data_config()["dir"]).expanduser()
        return RecordFiles(find_files(folder, part))

    def _batch_size(self) -> int:
        return self.context.get_per_slot_batch_size()
