"""Random augmentation in the pipeline, and a hook that stops when the loss is small."""

# config: searcher.metric=loss

import numpy as np
import tensorflow as tf

import detcore_estimator as de

EPOCHS = 4
tf1 = tf.compat.v1
rng = np.random.default_rng(3)
images = rng.random((64, 6, 6)).astype("float32")
labels = (images.mean((1, 2)) > 0.5).astype("int32")


def augment(image, label):
    image = tf.image.random_flip_left_right(image[..., None])[..., 0]
    return image + tf.random.normal([6, 6], stddev=0.05), label


class StopWhenGood(de.RunHook):
    def __init__(self):
        self.losses = []

    def before_run(self, run_context):
        return tf1.train.SessionRunArgs("loss_value:0")

    def after_run(self, run_context, run_values):
        self.losses.append(float(run_values.results))
        if np.mean(self.losses[-5:]) < 0.05:
            run_context.request_stop()


class Trial(de.EstimatorTrial):
    def __init__(self, context):
        self.context = context

    def build_estimator(self):
        return de.Estimator(self.model_fn)

    def build_train_spec(self):
        return de.TrainSpec(
            lambda: self.input_fn().shuffle(64).map(augment).batch(16), hooks=[StopWhenGood()]
        )

    def build_validation_spec(self):
        return de.EvalSpec(lambda: self.input_fn().batch(32), steps=None)

    def input_fn(self):
        data = tf.data.Dataset.from_tensor_slices((images, labels))
        return self.context.wrap_dataset(data)

    def model_fn(self, features, labels, mode):
        flat = tf.reshape(features, [-1, 36])
        logits = flat @ tf1.get_variable("w", [36, 2])
        loss = tf1.losses.sparse_softmax_cross_entropy(labels, logits)
        tf.identity(loss, name="loss_value")
        optimizer = self.context.wrap_optimizer(tf1.train.FtrlOptimizer(0.1))
        train_op = optimizer.minimize(loss, tf1.train.get_global_step())
        return de.EstimatorSpec(mode, loss=loss, train_op=train_op)
