"""A GAN with a custom train_step, two optimizers and a seed generator."""

import keras
import numpy as np
import tensorflow as tf

import detcore_keras

EPOCHS = 4


class GAN(keras.Model):
    def __init__(self):
        super().__init__()
        self.generator = keras.Sequential(
            [keras.Input((3,)), keras.layers.Dense(16, activation="relu"), keras.layers.Dense(2)]
        )
        self.discriminator = keras.Sequential(
            [
                keras.Input((2,)),
                keras.layers.Dense(16, activation="relu"),
                keras.layers.Dropout(0.1),
                keras.layers.Dense(1),
            ]
        )
        self.noise = tf.random.Generator.from_seed(4)
        self.loss_function = keras.losses.BinaryCrossentropy(from_logits=True)

    def compile(self, g_optimizer, d_optimizer):
        super().compile()
        self.g_optimizer, self.d_optimizer = g_optimizer, d_optimizer

    def train_step(self, data):
        real = data[0] if isinstance(data, tuple) else data
        count = tf.shape(real)[0]
        ones, zeros = tf.ones((count, 1)), tf.zeros((count, 1))
        fake = self.generator(self.noise.normal((count, 3)), training=True)
        with tf.GradientTape() as tape:
            d_loss = self.loss_function(ones, self.discriminator(real, training=True))
            d_loss += self.loss_function(zeros, self.discriminator(fake, training=True))
        weights = self.discriminator.trainable_weights
        self.d_optimizer.apply_gradients(zip(tape.gradient(d_loss, weights), weights))
        with tf.GradientTape() as tape:
            fake = self.generator(self.noise.normal((count, 3)), training=True)
            g_loss = self.loss_function(ones, self.discriminator(fake, training=True))
        weights = self.generator.trainable_weights
        self.g_optimizer.apply_gradients(zip(tape.gradient(g_loss, weights), weights))
        return {"d_loss": d_loss, "g_loss": g_loss}


keras.utils.set_random_seed(4)
points = np.random.normal(2, 0.5, size=(96, 2)).astype("float32")
model = GAN()
model.compile(keras.optimizers.Adam(0.01), keras.optimizers.Adam(0.01))
history = detcore_keras.fit(model, points, batch_size=16, epochs=EPOCHS, save_every=4, verbose=0)
generator, discriminator = model.generator, model.discriminator
print("final", history.history["g_loss"][-1], history.history["d_loss"][-1])
