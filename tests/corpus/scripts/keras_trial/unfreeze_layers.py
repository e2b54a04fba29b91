"""A frozen base is unfrozen in the third epoch; attributes of the trial count epochs."""

import keras
import numpy as np

from detcore_keras import TFKerasTrial

EPOCHS = 5
rng = np.random.default_rng(6)
x = rng.normal(size=(96, 6)).astype("float32")
y = x[:, :3].argmax(1).astype("int32")


class Unfreeze(keras.callbacks.Callback):
    def __init__(self, trial):
        super().__init__()
        self.trial = trial

    def on_epoch_begin(self, epoch, logs=None):
        self.trial.epochs_seen += 1
        if epoch == 2:
            self.model.get_layer("base").trainable = True
            self.model.optimizer.learning_rate = 0.002


class Trial(TFKerasTrial):
    def __init__(self, context):
        self.context = context
        self.epochs_seen = 0

    def build_model(self):
        base = keras.layers.Dense(16, "relu", name="base")
        base.trainable = False
        model = keras.Sequential(
            [keras.Input((6,)), base, keras.layers.Dropout(0.2), keras.layers.Dense(3)]
        )
        model = self.context.wrap_model(model)
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.Adam(0.01), loss)
        return model

    def keras_callbacks(self):
        return [Unfreeze(self)]

    def build_training_data_loader(self):
        return x, y

    def build_validation_data_loader(self):
        return x[:48], y[:48]
