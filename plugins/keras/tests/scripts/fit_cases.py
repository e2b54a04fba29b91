"""Train with `detcore_keras.fit`. The arguments are a case and a stop; see ``stops.py``."""

import sys
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf
from stops import StopAtBatch, StopAtEpoch, digest, print_result

from detcore_keras import fit

keras.utils.set_random_seed(1)
rng = np.random.default_rng(0)
x = rng.normal(size=(48, 4)).astype("float32")
y = x.sum(1, keepdims=True)


class Cycle(keras.callbacks.Callback):
    """Scales the last bias by a rule that depends on how many batches it has counted."""

    def __init__(self):
        super().__init__()
        self.batches = 0
        self.rates = []

    def on_train_batch_end(self, batch, logs=None):
        self.batches += 1

    def on_epoch_end(self, epoch, logs=None):
        self.rates.append(float(np.asarray(self.model.optimizer.learning_rate)))
        bias = self.model.layers[-1].weights[1]
        bias.assign(bias * (1.0 + 0.1 * np.sin(self.batches)))


class Shuffled(getattr(keras.utils, "PyDataset", keras.utils.Sequence)):
    """Draws noise for each batch, and shuffles itself after each epoch."""

    def __init__(self):
        if hasattr(keras.utils, "PyDataset"):
            super().__init__()
        self.order = np.arange(48)
        self.reads = 0

    def __len__(self):
        return 6

    def __getitem__(self, index):
        rows = self.order[8 * index : 8 * index + 8]
        self.reads += 1
        noise = np.random.normal(size=(8, 4)) / self.reads
        return x[rows] + noise, (y[rows] > 0).astype("int32")

    def on_epoch_end(self):
        np.random.shuffle(self.order)


def make_model(optimizer=None, loss="mse", **options):
    model = keras.Sequential(
        [
            keras.layers.Dense(8, activation="relu"),
            keras.layers.BatchNormalization(),
            keras.layers.Dropout(0.2),
            keras.layers.Dense(1, activation="sigmoid" if "cross" in loss else None),
        ]
    )
    model.compile(optimizer or keras.optimizers.Adam(0.1), loss, metrics=["mae"], **options)
    return model


def train_arrays():
    """All usual callbacks. The last records validate."""
    model, cycle = make_model(), Cycle()
    callbacks = [
        keras.callbacks.EarlyStopping(patience=3, restore_best_weights=True),
        keras.callbacks.ReduceLROnPlateau(patience=1, factor=0.5),
        keras.callbacks.ModelCheckpoint(
            "best.weights.h5", save_best_only=True, save_weights_only=True
        ),
        keras.callbacks.BackupAndRestore("backup"),
        keras.callbacks.CSVLogger("log.csv"),
        cycle,
        StopAtBatch(),
    ]
    weights = np.linspace(0.5, 2, 48).astype("float32")
    history = fit(
        model, x, y, 7, 8, 0, callbacks, 0.25, save_every=2, sample_weight=weights,
        validation_batch_size=5, hparams={"rate": 0.1},
    )  # fmt: skip
    best = make_model()
    best.build((None, 4))
    best.load_weights("best.weights.h5")
    rows = Path("log.csv").read_text()
    print_result(model, history, digest(best.weights), rows, cycle.batches, cycle.rates)


def train_sequence():
    model = make_model(loss="binary_crossentropy")
    history = fit(
        model, Shuffled(), epochs=4, class_weight={0: 1.0, 1: 3.0}, verbose=0, save_every=4,
        validation_data=[x, y > 0], validation_freq=2, callbacks=StopAtBatch(),
    )  # fmt: skip
    print_result(model, history)


def train_dataset():
    """A shuffled pipeline of unknown length, and a learning rate schedule."""
    schedule = keras.optimizers.schedules.CosineDecay(0.1, 30)
    model = make_model(keras.optimizers.SGD(schedule, momentum=0.9))
    dataset = tf.data.Dataset.from_tensor_slices((x, y)).filter(lambda x, y: y[0] < 3)
    dataset = dataset.shuffle(48).batch(8).prefetch(2)
    history = fit(
        model, dataset, epochs=5, verbose=0, save_every=4, callbacks=[StopAtBatch()],
        validation_data=tf.data.Dataset.from_tensor_slices((x, y)).batch(16), validation_steps=2,
    )  # fmt: skip
    print_result(model, history)


def train_steps():
    """Fast training of an endless pipeline, without validation data, with averaged weights."""
    optimizer = keras.optimizers.Adam(0.1, use_ema=True, ema_momentum=0.9)
    model = make_model(optimizer)
    dataset = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(48).repeat().batch(8)
    callbacks = [
        keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.9),
        keras.callbacks.EarlyStopping(monitor="loss", patience=2),
        StopAtEpoch(),
    ]
    history = fit(
        model, dataset, epochs=9, initial_epoch=2, steps_per_epoch=5, verbose=0,
        save_every=4, callbacks=callbacks,
    )  # fmt: skip
    print_result(model, history)


def train_twice():
    """Train a part of the model, and then all of it with another optimizer."""
    model = make_model()
    model.layers[0].trainable = False
    model.compile("adam", "mse")
    first = fit(model, x, y, batch_size=8, epochs=3, verbose=0, callbacks=[StopAtBatch()])
    model.layers[0].trainable = True
    model.compile(keras.optimizers.RMSprop(0.01), "mse")
    callbacks = [keras.callbacks.ReduceLROnPlateau(monitor="loss", patience=0), StopAtBatch()]
    history = fit(
        model, x, y, batch_size=8, epochs=6, initial_epoch=3, verbose=0, callbacks=callbacks,
        save_every=4,
    )  # fmt: skip
    print_result(model, history, first.history, float(np.random.rand()))


globals()[f"train_{sys.argv[1]}"]()
