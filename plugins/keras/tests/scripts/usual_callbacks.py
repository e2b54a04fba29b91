"""Train with common callbacks and `DetcoreCallback`.

The arguments are a directory for files and, optionally, how and where the process ends. ``kill-3``
kills it when epoch 3 begins, ``preempt-1-2`` preempts it in batch 2 of epoch 1.
"""

import hashlib
import os
import signal
import sys
from pathlib import Path

import keras
import numpy as np

from detcore import core
from detcore_keras import DetcoreCallback

folder = Path(sys.argv[1])
way, *end_at = sys.argv[2].split("-") if len(sys.argv) > 2 else [""]


def digest():
    weights = [np.asarray(value) for value in model.get_weights()] if model.built else []
    return hashlib.sha256(b"".join(value.tobytes() for value in weights)).hexdigest()[:12]


class End(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch
        if epoch == callback.initial_epoch:
            print("from", epoch, callback.steps_completed, digest())
        if way == "kill" and [str(epoch)] == end_at:
            context.checkpoint.wait()
            sys.stdout.flush()
            os.kill(os.getpid(), signal.SIGKILL)

    def on_train_batch_begin(self, batch, logs=None):
        if way == "preempt" and [str(self.epoch), str(batch)] == end_at:
            context.preempt.request()


class Cycle(keras.callbacks.Callback):
    """Scales the last bias by a rule that depends on how many epochs it has counted."""

    def __init__(self):
        super().__init__()
        self.epochs = 0
        self.rates = []

    def on_epoch_end(self, epoch, logs=None):
        self.epochs += 1
        self.rates.append(float(np.asarray(self.model.optimizer.learning_rate)))
        bias = self.model.layers[-1].weights[1]
        bias.assign(bias * (1.0 + 0.1 * np.sin(self.epochs)))


keras.utils.set_random_seed(1)
if keras.__version__.startswith("2."):
    keras.backend.experimental.enable_tf_random_generator()  # otherwise Dropout cannot be saved
x = np.random.default_rng(0).normal(size=(48, 4)).astype("float32")
y = x.sum(1, keepdims=True)
# Without an Input, so that Keras 2 creates the weights in the first batch.
model = keras.Sequential(
    [
        keras.layers.Dense(8, activation="relu"),
        keras.layers.Dropout(0.2),
        keras.layers.Dense(1),
    ]
)
model.compile(keras.optimizers.Adam(0.3), "mse", metrics=["mae"])
cycle = Cycle()
with core.init(resume=True) as context:
    callback = DetcoreCallback(context)
    try:
        history = model.fit(
            x[:32],
            y[:32],
            batch_size=8,
            epochs=30,
            initial_epoch=callback.initial_epoch,
            shuffle=False,
            validation_data=(x[32:], y[32:]),
            verbose=0,
            callbacks=[
                callback,  # in front, where Keras would call it before the others
                keras.callbacks.EarlyStopping(patience=4, restore_best_weights=True),
                keras.callbacks.ReduceLROnPlateau(patience=1, factor=0.5),
                keras.callbacks.ModelCheckpoint(
                    str(folder / "best.weights.h5"),
                    save_best_only=True,
                    save_weights_only=True,
                ),
                keras.callbacks.BackupAndRestore(str(folder / "backup")),
                keras.callbacks.CSVLogger(str(folder / "log.csv")),
                cycle,
                End(),
            ],
        )
    except SystemExit:
        print("preempted", callback.steps_completed, digest())
        raise
losses = history.history["val_loss"]
final = digest()
model.load_weights(folder / "best.weights.h5")
rows = hashlib.sha256((folder / "log.csv").read_bytes()).hexdigest()[:12]
print([rows, len(losses), losses[-1], final, digest(), cycle.epochs, cycle.rates])
