"""Cross-validation: one call of fit for each fold."""

import keras
import numpy as np

import detcore_keras

EPOCHS = 2
rng = np.random.default_rng(11)
x = rng.normal(size=(72, 5)).astype("float32")
y = x @ np.array([[1.0], [2.0], [0.0], [-1.0], [0.5]], "float32")
order = rng.permutation(72)
models, scores = [], []
for fold in range(3):
    keras.utils.set_random_seed(fold)
    held_out = order[fold * 24 : (fold + 1) * 24]
    train = np.setdiff1d(order, held_out)
    model = keras.Sequential(
        [keras.Input((5,)), keras.layers.Dense(8, activation="relu"), keras.layers.Dense(1)]
    )
    model.compile(keras.optimizers.Adam(0.02), "mse")
    detcore_keras.fit(model, x[train], y[train], batch_size=12, epochs=EPOCHS, verbose=0)
    scores.append(model.evaluate(x[held_out], y[held_out], verbose=0))
    models.append(model)
print("final", scores)
