"""Class weights, an unshuffled order, and a swap of the optimizer's rate in a callback."""

import keras
import numpy as np

import detcore_keras

EPOCHS = 5


class Swap(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        if epoch == 3:
            self.model.optimizer.learning_rate = 0.001
            self.model.layers[0].trainable = False


keras.utils.set_random_seed(13)
x = np.random.normal(size=(80, 4)).astype("float32")
y = (x[:, 0] > 0.8).astype("int32")
model = keras.Sequential(
    [
        keras.Input((4,)),
        keras.layers.Dense(8, activation="relu"),
        keras.layers.Dense(1, activation="sigmoid"),
    ]
)
model.compile(keras.optimizers.Nadam(0.01), "binary_crossentropy", metrics=["AUC"])
history = detcore_keras.fit(
    model,
    x,
    y,
    batch_size=16,
    epochs=EPOCHS,
    save_every=4,
    class_weight={0: 1.0, 1: 4.0},
    shuffle=False,
    callbacks=[Swap()],
    verbose=0,
)
print("final", history.history["loss"][-1])
