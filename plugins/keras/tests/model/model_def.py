"""Trials with one small problem in each of the five kinds of data."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from detcore_keras import SequenceAdapter, TFKerasTrial, TFKerasTrialContext, callbacks

RECORDS = 203


def records() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(1)
    x = rng.normal(size=(RECORDS, 8)).astype("float32")
    return x, (x @ rng.normal(size=(8, 3))).argmax(axis=1)


class Batches(keras.utils.Sequence):
    """Batches with augmentation in `__getitem__`, in a new order after each epoch."""

    def __init__(self, batch_size: int) -> None:
        if hasattr(keras.utils, "PyDataset"):
            super().__init__()
        self._x, self._y = records()
        self._order = np.arange(len(self._x))
        self._size = batch_size

    def __len__(self) -> int:
        return -(-len(self._x) // self._size)

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        rows = self._order[index * self._size : (index + 1) * self._size]
        noise = np.random.normal(scale=0.1, size=(len(rows), 8)).astype("float32")
        return self._x[rows] + noise, self._y[rows]

    def on_epoch_end(self) -> None:
        np.random.shuffle(self._order)


class Base(TFKerasTrial):
    def __init__(self, context: TFKerasTrialContext) -> None:
        self.context = context
        self.size = context.get_per_slot_batch_size()

    def build_model(self) -> Any:
        model = keras.Sequential(
            [
                keras.layers.Dense(16, activation="relu"),
                keras.layers.BatchNormalization(),
                keras.layers.Dropout(0.3),
                keras.layers.Dense(3),
            ]
        )
        model = self.context.wrap_model(model)
        optimizer = self.context.wrap_optimizer(keras.optimizers.Adam(0.003))
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(optimizer=optimizer, loss=loss, metrics=["accuracy"])
        return model

    def build_validation_data_loader(self) -> Any:
        return records()


class Note(callbacks.Callback):
    """Adds a file to each checkpoint."""

    def on_checkpoint_end(self, checkpoint_dir: str) -> None:
        Path(checkpoint_dir, "note.txt").write_text("from a callback")


class Arrays(Base):
    def keras_callbacks(self) -> list[Any]:
        return [Note()]

    def build_training_data_loader(self) -> Any:
        return records()


class WeightedArrays(Base):
    def build_training_data_loader(self) -> Any:
        x, y = records()
        return x, y, np.linspace(0.5, 1.5, len(x), dtype="float32")


class Dataset(Base):
    def build_training_data_loader(self) -> Any:
        dataset = self.context.wrap_dataset(tf.data.Dataset.from_tensor_slices(records()))
        return dataset.shuffle(RECORDS).batch(self.size).prefetch(2)


class Stops(Dataset):
    def keras_callbacks(self) -> list[Any]:
        stops = callbacks.EarlyStopping("val_loss", patience=100, restore_best_weights=True)
        lowers = callbacks.ReduceLROnPlateau("val_loss", patience=1)
        return [stops, lowers]


class Sequence(Base):
    def build_training_data_loader(self) -> Any:
        return Batches(self.size)


class Adapter(Base):
    def build_training_data_loader(self) -> Any:
        return SequenceAdapter(Batches(self.size), workers=2, use_multiprocessing=True)


class Wide(Dataset):
    """48 MB of weights and optimizer state."""

    def build_model(self) -> Any:
        wide = keras.layers.Dense(2000, activation="relu")
        layers = [keras.layers.Dense(2000), wide, keras.layers.Dropout(0.3), keras.layers.Dense(3)]
        model = self.context.wrap_model(keras.Sequential(layers))
        optimizer = self.context.wrap_optimizer(keras.optimizers.Adam(0.001))
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(optimizer=optimizer, loss=loss, metrics=["accuracy"])
        return model


class ChangesAtEnd(callbacks.Callback):
    """Changes a weight at the end of training, depending on the losses.

    If ``KILL_FILE`` exists, first deletes it and kills the runner and the worker.
    """

    def __init__(self) -> None:
        super().__init__()
        self.losses: list[float] = []

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.losses.append(logs["val_loss"])

    def on_train_end(self, logs: Any = None) -> None:
        file = Path(os.environ.get("KILL_FILE", "/dev/null"))
        if file.is_file():
            file.unlink()
            os.kill(os.getppid(), signal.SIGKILL)
            os.kill(os.getpid(), signal.SIGKILL)
        bias = self.model.layers[-1].bias
        bias.assign(bias + sum(self.losses))


class Ends(Arrays):
    def keras_callbacks(self) -> list[Any]:
        return [ChangesAtEnd()]


class Raises(Arrays):
    def build_model(self) -> Any:
        return 1 / 0
