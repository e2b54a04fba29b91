"""Keras trials for the framework plugin suite."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from detcore import InvalidHP
from detcore_keras import TFKerasTrial, TFKerasTrialContext, callbacks

RECORDS = 50


def records() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(1)
    x = rng.normal(size=(RECORDS, 4)).astype("float32")
    return x, (x @ np.array([1.0, -2.0, 0.5, 3.0], "float32"))[:, None]


class Journal(callbacks.Callback):
    """Writes the names of called hooks to a file."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self._path = Path(path)

    def _note(self, event: str) -> None:
        with self._path.open("a", encoding="utf-8") as journal:
            journal.write(event + "\n")

    def on_train_begin(self, logs: Any = None) -> None:
        self._note("train_begin")

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._note("epoch_begin")

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self._note("batch_end")

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self._note("epoch_end")

    def on_test_begin(self, logs: Any = None) -> None:
        self._note("validation_begin")

    def on_test_end(self, logs: Any = None) -> None:
        self._note("validation_end")

    def on_checkpoint_end(self, checkpoint_dir: str) -> None:
        self._note("checkpoint")

    def on_train_end(self, logs: Any = None) -> None:
        self._note("train_end")


class AfterBatches(callbacks.Callback):
    """Runs an action after a number of batches."""

    def __init__(self, count: int, action: Any) -> None:
        super().__init__()
        self._left = count
        self._action = action

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self._left -= 1
        if self._left == 0:
            self._action(self.model)


def break_down(model: Any) -> None:
    raise ZeroDivisionError("broken on purpose")


def stop(model: Any) -> None:
    model.stop_training = True


class SteadyTrial(TFKerasTrial):
    """Draws numbers only for its initial weights, and does not shuffle the records."""

    has_layers_that_draw = False

    def __init__(self, context: TFKerasTrialContext) -> None:
        self.context = context
        self.rate = context.get_hparam("learning_rate")
        if self.rate <= 0:
            raise InvalidHP("learning_rate has to be above 0")

    def build_model(self) -> Any:
        layers = [keras.layers.Dense(8, activation="relu"), keras.layers.Dense(1)]
        if self.has_layers_that_draw:
            layers[1:1] = [keras.layers.BatchNormalization(), keras.layers.Dropout(0.3)]
        model = self.context.wrap_model(keras.Sequential(layers))
        optimizer = self.context.wrap_optimizer(keras.optimizers.Adam(self.rate))
        model.compile(optimizer=optimizer, loss="mse", metrics=["mae"])
        return model

    def build_training_data_loader(self) -> Any:
        return self.batches(
            self.context.wrap_dataset(tf.data.Dataset.from_tensor_slices(records()))
        )

    def batches(self, dataset: Any) -> Any:
        return dataset.batch(self.context.get_per_slot_batch_size(), drop_remainder=True)

    def build_validation_data_loader(self) -> Any:
        return records()


class LineTrial(SteadyTrial):
    """Uses shuffling, dropout and callbacks."""

    has_layers_that_draw = True

    def batches(self, dataset: Any) -> Any:
        return super().batches(dataset.shuffle(RECORDS))

    def keras_callbacks(self) -> list[Any]:
        path = self.context.get_data_config().get("journal")
        return [Journal(path)] if path else []


class BrokenTrial(SteadyTrial):
    def keras_callbacks(self) -> list[Any]:
        return [AfterBatches(6, break_down)]


class StoppingTrial(SteadyTrial):
    def keras_callbacks(self) -> list[Any]:
        return [AfterBatches(9, stop)]
