"""Train a network on scans of handwritten digits with Keras on JAX, in `model.fit`."""

import os

os.environ.setdefault("KERAS_BACKEND", "jax")

import keras
from keras.layers import Dense, Dropout
from sklearn.datasets import load_digits

HPARAMS = {"learning_rate": 0.1, "global_batch_size": 32}
NUM_TRAINING = 1500


def main() -> None:
    train(**HPARAMS)


def train(*, learning_rate: float, global_batch_size: int) -> None:
    digits = load_digits()
    x, y = digits.data.astype("float32") / 16, digits.target
    val_data = x[NUM_TRAINING:], y[NUM_TRAINING:]
    keras.utils.set_random_seed(0)
    model = build_model(learning_rate)
    model.fit(
        x[:NUM_TRAINING], y[:NUM_TRAINING], batch_size=global_batch_size, epochs=5,
        validation_data=val_data, verbose=2,
    )  # fmt: skip
    model.save("model.keras")


def build_model(learning_rate: float) -> keras.Model:
    model = keras.Sequential([keras.Input((64,)), Dense(32, "relu"), Dropout(0.2), Dense(10)])
    model.compile(
        optimizer=keras.optimizers.SGD(learning_rate, momentum=0.9),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    return model


if __name__ == "__main__":
    main()
