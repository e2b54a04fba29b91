"""Early stopping with the best weights, a plateau schedule and a custom callback."""

import keras
import numpy as np

from detcore_keras import TFKerasTrial

EPOCHS = 10
rng = np.random.default_rng(1)
x = rng.normal(size=(80, 12)).astype("float32")
y = (x[:, :1] + rng.normal(size=(80, 1))).astype("float32")


class Momentum(keras.callbacks.Callback):
    """Raises the momentum, and remembers losses."""

    def __init__(self):
        super().__init__()
        self.losses = []

    def on_epoch_end(self, epoch, logs=None):
        self.losses.append(logs["loss"])
        if len(self.losses) > 1 and self.losses[-1] < self.losses[-2]:
            rate = float(np.asarray(self.model.optimizer.learning_rate))
            self.model.optimizer.learning_rate = rate * 1.02


class Trial(TFKerasTrial):
    def __init__(self, context):
        self.context = context

    def build_model(self):
        model = keras.Sequential(
            [keras.Input((12,)), keras.layers.Dense(64, "relu"), keras.layers.Dense(1)]
        )
        model = self.context.wrap_model(model)
        model.compile(keras.optimizers.SGD(0.02, momentum=0.9), "mse")
        return model

    def keras_callbacks(self):
        return [
            keras.callbacks.EarlyStopping(patience=3, restore_best_weights=True),
            keras.callbacks.ReduceLROnPlateau(patience=1, factor=0.5),
            Momentum(),
        ]

    def build_training_data_loader(self):
        return x[:60], y[:60]

    def build_validation_data_loader(self):
        return x[60:], y[60:]
