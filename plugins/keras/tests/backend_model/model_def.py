"""One trial for all back ends of Keras, with each kind of data, which kills itself on request."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import keras
import numpy as np

from detcore_keras import KerasTrial, SequenceAdapter

RECORDS = 70
FEATURES = 6


def make_records() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(1)
    x = rng.normal(size=(RECORDS, FEATURES)).astype("float32")
    return x, (x @ rng.normal(size=(FEATURES, 3))).argmax(axis=1)


class Batches(keras.utils.PyDataset):
    """Batches with random noise, in a new order after each epoch."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self._x, self._y = make_records()
        self._order = np.arange(RECORDS)
        self._size = size

    def __len__(self) -> int:
        return -(-RECORDS // self._size)

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        rows = self._order[index * self._size : (index + 1) * self._size]
        noise = np.random.normal(scale=0.1, size=(len(rows), FEATURES)).astype("float32")
        return self._x[rows] + noise, self._y[rows]

    def on_epoch_end(self) -> None:
        np.random.shuffle(self._order)


class KillsItself(keras.callbacks.Callback):
    """Kills the process before the batches that the file KILLS lists, once each.

    SIGTERM is sent before a batch with a negative number.
    """

    def __init__(self) -> None:
        super().__init__()
        self.file = Path(os.environ.get("KILLS", "/dev/null"))
        self.batches = 0

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        first, *later = self.file.read_text().split() or ["0"]
        self.batches += 1
        if self.batches == abs(int(first)):
            self.file.write_text(" ".join(later))
            os.kill(os.getpid(), signal.SIGTERM if first.startswith("-") else signal.SIGKILL)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        pass


def read_arrays(trial: Trial) -> Any:
    return make_records()


def read_sequence(trial: Trial) -> Any:
    return Batches(trial.size)


def read_adapter(trial: Trial) -> Any:
    return SequenceAdapter(Batches(trial.size), workers=2, use_multiprocessing=True)


def read_pipeline(trial: Trial) -> Any:
    import tensorflow as tf

    dataset = trial.context.wrap_dataset(tf.data.Dataset.from_tensor_slices(make_records()))
    return dataset.shuffle(RECORDS).batch(trial.size).prefetch(2)


def read_loader(trial: Trial) -> Any:
    import torch

    import detcore_torch

    dataset = torch.utils.data.TensorDataset(*map(torch.from_numpy, make_records()))
    loader = torch.utils.data.DataLoader(dataset, trial.size, shuffle=True)
    return detcore_torch.resumable(loader, seed=trial.context.get_trial_seed())


def read_grain(trial: Trial) -> Any:
    import grain

    from detcore_torch import IteratorSource

    x, y = make_records()
    records = grain.MapDataset.source(range(RECORDS)).map(lambda index: (x[index], y[index]))
    return IteratorSource(lambda epoch: records.seed(epoch).shuffle().batch(trial.size))


DATA: Mapping[str, Callable[[Trial], Any]] = {
    "arrays": read_arrays,
    "sequence": read_sequence,
    "adapter": read_adapter,
    "tf.data": read_pipeline,
    "DataLoader": read_loader,
    "Grain": read_grain,
}


class Trial(KerasTrial):
    def __init__(self, context: Any) -> None:
        self.context = context
        self.size = context.get_per_slot_batch_size()

    def build_model(self) -> Any:
        layers = [
            keras.layers.Dense(9, activation="relu"),
            keras.layers.BatchNormalization(),
            keras.layers.Dropout(0.3),
            keras.layers.GaussianNoise(0.1),
            keras.layers.Dense(3),
        ]
        model = self.context.wrap_model(keras.Sequential(layers))
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.Adam(0.01), loss, metrics=["accuracy"])
        return model

    def build_training_data_loader(self) -> Any:
        return DATA[self.context.get_hparam("data")](self)

    def build_validation_data_loader(self) -> Any:
        return make_records()

    def keras_callbacks(self) -> list[Any]:
        return [KillsItself()]
