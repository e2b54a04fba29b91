"""A callback that keeps an average of the weights, and validates with it."""

import keras
import numpy as np

import detcore_keras

EPOCHS = 4


class AverageWeights(keras.callbacks.Callback):
    def __init__(self, decay=0.9):
        super().__init__()
        self.decay = decay
        self.average = None
        self.count = 0

    def on_train_batch_end(self, batch, logs=None):
        weights = self.model.get_weights()
        if self.average is None:
            self.average = weights
        self.average = [
            self.decay * a + (1 - self.decay) * w for a, w in zip(self.average, weights)
        ]
        self.count += 1

    def on_epoch_end(self, epoch, logs=None):
        if epoch == EPOCHS - 1:
            self.model.set_weights(self.average)


keras.utils.set_random_seed(3)
x = np.random.normal(size=(96, 4)).astype("float32")
y = np.sin(x.sum(1, keepdims=True))
model = keras.Sequential(
    [keras.Input((4,)), keras.layers.Dense(16, activation="tanh"), keras.layers.Dense(1)]
)
model.compile(keras.optimizers.RMSprop(0.01), "mse")
callback = AverageWeights()
detcore_keras.fit(
    model, x, y, batch_size=16, epochs=EPOCHS, save_every=4, callbacks=[callback], verbose=0
)
average = callback.average
print("final", callback.count, model.evaluate(x, y, verbose=0))
