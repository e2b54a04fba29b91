"""`LearningRateScheduler`, `LambdaCallback` and a counter in a global variable."""

import keras
import numpy as np

import detcore_keras

EPOCHS = 5
seen_batches = 0
losses = []


def rate(epoch, lr):
    return lr * 0.8 if epoch > 1 else lr


def count_batch(batch, logs):
    global seen_batches
    seen_batches += 1
    losses.append(logs["loss"])


keras.utils.set_random_seed(7)
x = np.random.uniform(size=(90, 5)).astype("float32")
y = (x**2).sum(1, keepdims=True)
model = keras.Sequential(
    [
        keras.Input((5,)),
        keras.layers.Dense(16, activation="elu"),
        keras.layers.GaussianNoise(0.05),
        keras.layers.Dense(1),
    ]
)
model.compile(keras.optimizers.Adagrad(0.1), "mse")
detcore_keras.fit(
    model,
    x,
    y,
    batch_size=15,
    epochs=EPOCHS,
    save_every=4,
    validation_split=0.2,
    verbose=0,
    callbacks=[
        keras.callbacks.LearningRateScheduler(rate),
        keras.callbacks.LambdaCallback(on_train_batch_end=count_batch),
    ],
)
print("final", seen_batches, len(losses), float(np.sum(losses)))
