"""Early stopping, a plateau schedule, a best model file and a log."""

import keras
import numpy as np

import detcore_keras

EPOCHS = 12
keras.utils.set_random_seed(2)
x = np.random.normal(size=(80, 12)).astype("float32")
y = x[:, :1] + np.random.normal(size=(80, 1)).astype("float32")
model = keras.Sequential(
    [keras.Input((12,)), keras.layers.Dense(64, activation="relu"), keras.layers.Dense(1)]
)
model.compile(keras.optimizers.SGD(0.02, momentum=0.9), "mse", metrics=["mae"])
callbacks = [
    keras.callbacks.EarlyStopping(patience=3, restore_best_weights=True),
    keras.callbacks.ReduceLROnPlateau(patience=1, factor=0.5),
    keras.callbacks.ModelCheckpoint("best.weights.h5", save_best_only=True, save_weights_only=True),
    keras.callbacks.CSVLogger("log.csv"),
]
history = detcore_keras.fit(
    model,
    x[:60],
    y[:60],
    batch_size=12,
    epochs=EPOCHS,
    validation_data=(x[60:], y[60:]),
    callbacks=callbacks,
    verbose=0,
)
with open("log.csv") as file:
    rows = len(file.readlines())
model_loss = model.evaluate(x[60:], y[60:], verbose=0)
model.load_weights("best.weights.h5")
print("final", model_loss, rows, model.evaluate(x[60:], y[60:], verbose=0))
