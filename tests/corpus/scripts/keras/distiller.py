"""Knowledge distillation: first a teacher is fitted, then a student with its own step."""

import keras
import numpy as np
import tensorflow as tf

import detcore_keras

EPOCHS = 4


class Distiller(keras.Model):
    def __init__(self, student, teacher):
        super().__init__()
        self.student, self.teacher = student, teacher
        self.teacher.trainable = False
        self.hard = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        self.soft = keras.losses.KLDivergence()
        self.tracker = keras.metrics.Mean(name="distillation")

    def call(self, inputs):
        return self.student(inputs)

    def train_step(self, data):
        x, y = data
        target = tf.nn.softmax(self.teacher(x, training=False) / 3.0)
        with tf.GradientTape() as tape:
            logits = self.student(x, training=True)
            loss = 0.3 * self.hard(y, logits) + self.soft(target, tf.nn.softmax(logits / 3.0))
        weights = self.student.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights))
        self.tracker.update_state(loss)
        return {"distillation": self.tracker.result()}

    @property
    def metrics(self):
        return [self.tracker]


def make_model(width):
    return keras.Sequential(
        [
            keras.Input((6,)),
            keras.layers.Dense(width, activation="relu"),
            keras.layers.Dropout(0.2),
            keras.layers.Dense(3),
        ]
    )


keras.utils.set_random_seed(5)
x = np.random.normal(size=(96, 6)).astype("float32")
y = x[:, :3].argmax(1)
teacher, student = make_model(32), make_model(8)
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
teacher.compile(keras.optimizers.Adam(0.01), loss)
detcore_keras.fit(teacher, x, y, batch_size=16, epochs=2, verbose=0)
model = Distiller(student, teacher)
model.compile(keras.optimizers.Adam(0.01))
history = detcore_keras.fit(model, x, y, batch_size=16, epochs=EPOCHS, verbose=0)
print("final", history.history["distillation"])
