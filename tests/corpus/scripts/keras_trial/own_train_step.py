"""A subclassed autoencoder with its own train_step, two optimizers and a metric."""

import keras
import numpy as np
import tensorflow as tf

from detcore_keras import TFKerasTrial

EPOCHS = 4
x = np.random.default_rng(2).normal(size=(96, 6)).astype("float32")


class VAE(keras.Model):
    def __init__(self):
        super().__init__()
        self.encoder = keras.layers.Dense(4)
        self.decoder = keras.layers.Dense(6)
        self.seed = tf.random.Generator.from_seed(3)
        self.encoder_optimizer = keras.optimizers.Adam(0.01)
        self.decoder_optimizer = keras.optimizers.RMSprop(0.01)
        self.tracker = keras.metrics.Mean(name="loss")

    def call(self, inputs):
        return self.decoder(self.encoder(inputs)[:, :2])

    def compute(self, data):
        mean, log_variance = tf.split(self.encoder(data), 2, axis=1)
        z = mean + tf.exp(0.5 * log_variance) * self.seed.normal(tf.shape(mean))
        error = tf.reduce_mean(tf.square(self.decoder(z) - data))
        kl = -0.5 * tf.reduce_mean(1 + log_variance - mean**2 - tf.exp(log_variance))
        return error + 0.1 * kl

    def train_step(self, data):
        data = data[0] if isinstance(data, tuple) else data
        with tf.GradientTape(persistent=True) as tape:
            loss = self.compute(data)
        for layer, optimizer in (
            (self.encoder, self.encoder_optimizer),
            (self.decoder, self.decoder_optimizer),
        ):
            variables = layer.trainable_variables
            optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))
        self.tracker.update_state(loss)
        return {"loss": self.tracker.result()}

    def test_step(self, data):
        data = data[0] if isinstance(data, tuple) else data
        self.tracker.update_state(tf.reduce_mean(tf.square(self(data) - data)))
        return {"loss": self.tracker.result()}

    @property
    def metrics(self):
        return [self.tracker]


class Trial(TFKerasTrial):
    def __init__(self, context):
        self.context = context

    def build_model(self):
        model = self.context.wrap_model(VAE())
        model.compile()
        return model

    def build_training_data_loader(self):
        return x

    def build_validation_data_loader(self):
        return x[:32]
