"""A small problem with several kinds of input pipelines and estimators."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from detcore_estimator import (
    Estimator,
    EstimatorSpec,
    EstimatorTrial,
    EstimatorTrialContext,
    EvalSpec,
    FinalExporter,
    LatestExporter,
    ModeKeys,
    RunHook,
    TrainSpec,
    export,
)

tf1 = tf.compat.v1

RECORDS = 203
FEATURES = 8
CLASSES = 3


def records() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(1)
    x = rng.normal(size=(RECORDS, FEATURES)).astype("float32")
    return x, (x @ rng.normal(size=(FEATURES, CLASSES))).argmax(axis=1).astype("int32")


def dense(values: Any, units: int, name: str) -> Any:
    with tf1.variable_scope(name):
        kernel = tf1.get_variable("kernel", [int(values.shape[-1]), units])
        bias = tf1.get_variable("bias", [units], initializer=tf1.zeros_initializer())
    return values @ kernel + bias


def normalized(values: Any, *, training: bool) -> Any:
    """Subtract the mean of the batch, or in evaluation its moving average."""
    moving = tf1.get_variable("moving_mean", [int(values.shape[-1])], trainable=False)
    if not training:
        return values - moving
    mean = tf.reduce_mean(values, axis=0)
    update = tf1.assign_sub(moving, 0.05 * (moving - mean))
    tf1.add_to_collection(tf1.GraphKeys.UPDATE_OPS, update)
    return values - mean


def mean_of_batches(batches: list[np.ndarray]) -> float:
    return float(np.mean(np.concatenate(batches)))


class Journal(RunHook):
    """Records calls of its methods."""

    def __init__(self, name: str, path: str | None) -> None:
        self._name = name
        self._path = path

    def _note(self, event: str) -> None:
        if self._path is not None:
            with open(self._path, "a", encoding="utf-8") as file:
                file.write(f"{self._name}: {event}\n")

    def begin(self) -> None:
        self._note("begin")

    def after_create_session(self, session: Any, coord: Any) -> None:
        self._note("after_create_session")

    def before_run(self, run_context: Any) -> Any:
        self._note("before_run")

    def after_run(self, run_context: Any, run_values: Any) -> None:
        self._note("after_run")

    def end(self, session: Any) -> None:
        self._note("end")

    def on_checkpoint_load(self, checkpoint_dir: str) -> None:
        assert list(Path(checkpoint_dir).glob("model.ckpt-*.index"))
        self._note("on_checkpoint_load")

    def on_checkpoint_end(self, checkpoint_dir: str) -> None:
        assert list(Path(checkpoint_dir).glob("model.ckpt-*.index"))
        Path(checkpoint_dir, f"{self._name}.txt").write_text("from a hook")
        self._note("on_checkpoint_end")

    def on_trial_close(self) -> None:
        self._note("on_trial_close")


class Base(EstimatorTrial):
    """Dropout, moving averages, Adam, and two kinds of metrics, for all TensorFlow releases."""

    def __init__(self, context: EstimatorTrialContext) -> None:
        self.context = context
        self.size = context.get_per_slot_batch_size()

    def build_estimator(self) -> Any:
        return Estimator(self.model_fn)

    def model_fn(self, features: Any, labels: Any, mode: str) -> EstimatorSpec:
        training = mode == ModeKeys.TRAIN
        hidden = tf.nn.relu(normalized(dense(features["x"], 16, "hidden"), training=training))
        if training:
            hidden = tf.nn.dropout(hidden, rate=0.3)
        logits = dense(hidden, CLASSES, "logits")
        answers = tf.argmax(logits, axis=1, output_type=tf.int32)
        if mode == ModeKeys.PREDICT:
            outputs = {"serving_default": export.PredictOutput({"class": answers})}
            return EstimatorSpec(mode, predictions={"class": answers}, export_outputs=outputs)
        loss = tf.reduce_mean(
            tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
        )
        if mode == ModeKeys.EVAL:
            correct = tf.cast(tf.equal(answers, labels), tf.float32)
            metrics = {
                "accuracy": tf1.metrics.accuracy(labels, answers),
                "own_accuracy": self.context.make_metric(correct, mean_of_batches, np.float32),
            }
            return EstimatorSpec(mode, loss=loss, eval_metric_ops=metrics)
        optimizer = self.context.wrap_optimizer(tf1.train.AdamOptimizer(0.003))
        with tf.control_dependencies(tf1.get_collection(tf1.GraphKeys.UPDATE_OPS)):
            train_op = optimizer.minimize(loss, global_step=tf1.train.get_global_step())
        return EstimatorSpec(mode, loss=loss, train_op=train_op)

    def build_train_spec(self) -> Any:
        return TrainSpec(lambda: self.pipeline(self.wrapped_records()))

    def build_validation_spec(self) -> Any:
        return EvalSpec(lambda: self.wrapped_records().batch(50), steps=None)

    def wrapped_records(self) -> Any:
        x, y = records()
        return self.context.wrap_dataset(tf.data.Dataset.from_tensor_slices(({"x": x}, y)))

    def pipeline(self, dataset: Any) -> Any:
        return dataset.shuffle(RECORDS).batch(self.size).prefetch(2)


class Shuffled(Base):
    def build_train_spec(self) -> Any:
        journal = self.context.get_data_config().get("journal")
        return TrainSpec(
            lambda: self.pipeline(self.wrapped_records()),
            hooks=[Journal("first", journal), Journal("second", journal)],
        )


class Repeated(Base):
    def pipeline(self, dataset: Any) -> Any:
        return dataset.shuffle(RECORDS, seed=5).repeat().batch(self.size)


class SlowSaves(Repeated):
    """A trial with slow saves: each step changes a variable of 32 MB."""

    def model_fn(self, features: Any, labels: Any, mode: str) -> EstimatorSpec:
        spec = super().model_fn(features, labels, mode)
        if mode != ModeKeys.TRAIN:
            return spec
        ballast = tf1.get_variable("ballast", initializer=tf.zeros([8, 1 << 20]), trainable=False)
        with tf.control_dependencies([spec.train_op]):
            moved = tf1.assign(ballast, ballast * 0.5 + spec.loss)
        return spec._replace(train_op=moved.op)


class Generated(Base):
    """Records from Python code, random augmentation, and an unknown epoch length."""

    def wrapped_records(self) -> Any:
        x, y = records()

        def generate() -> Iterator[Any]:
            for features, label in zip(x, y, strict=True):
                yield {"x": features}, label

        signature = ({"x": tf.TensorSpec([FEATURES])}, tf.TensorSpec([], tf.int32))
        dataset = tf.data.Dataset.from_generator(generate, output_signature=signature)
        return self.context.wrap_dataset(dataset)

    def pipeline(self, dataset: Any) -> Any:
        def noisy(features: Any, label: Any) -> Any:
            noise = tf.random.normal(tf.shape(features["x"]), stddev=0.1)
            return {"x": features["x"] + noise}, label

        dataset = dataset.filter(lambda features, label: features["x"][0] > -1.0)
        return dataset.shuffle(50).map(noisy).batch(self.size)


class Layers(Base):
    """``tf.estimator.Estimator`` with layers of TensorFlow 1, for TensorFlow 2.15."""

    def build_estimator(self) -> Any:
        config = tf.estimator.RunConfig(save_checkpoints_steps=10, tf_random_seed=3)
        return tf.estimator.Estimator(self.layers_model_fn, config=config)

    def layers_model_fn(self, features: Any, labels: Any, mode: str) -> Any:
        training = mode == tf.estimator.ModeKeys.TRAIN
        hidden = tf1.layers.dense(features["x"], 16)
        hidden = tf.nn.relu(tf1.layers.batch_normalization(hidden, training=training))
        hidden = tf1.layers.dropout(hidden, rate=0.3, training=training)
        logits = tf1.layers.dense(hidden, CLASSES)
        loss = tf1.losses.sparse_softmax_cross_entropy(labels, logits)
        optimizer = self.context.wrap_optimizer(tf1.train.AdamOptimizer(0.003))
        with tf.control_dependencies(tf1.get_collection(tf1.GraphKeys.UPDATE_OPS)):
            train_op = optimizer.minimize(loss, global_step=tf1.train.get_global_step())
        accuracy = tf1.metrics.accuracy(labels, tf.argmax(logits, axis=1))
        return tf.estimator.EstimatorSpec(
            mode, loss=loss, train_op=train_op, eval_metric_ops={"accuracy": accuracy}
        )

    def build_train_spec(self) -> Any:
        return tf.estimator.TrainSpec(lambda: self.pipeline(self.wrapped_records()), max_steps=7)

    def build_validation_spec(self) -> Any:
        return tf.estimator.EvalSpec(lambda: self.wrapped_records().batch(50), steps=None)


class Premade(Layers):
    """``DNNClassifier`` with numbers, and words in a vocabulary with an embedding."""

    def build_estimator(self) -> Any:
        words = tf.feature_column.categorical_column_with_vocabulary_list("word", ["a", "b", "c"])
        columns = [
            tf.feature_column.numeric_column("x", shape=(FEATURES,)),
            tf.feature_column.embedding_column(words, dimension=4),
        ]
        return tf1.estimator.DNNClassifier(
            hidden_units=[16],
            feature_columns=columns,
            n_classes=CLASSES,
            optimizer=self.context.wrap_optimizer(tf1.train.AdamOptimizer(0.003)),
            dropout=0.3,
            batch_norm=True,
        )

    def wrapped_records(self) -> Any:
        x, y = records()
        features = {"x": x, "word": np.array(["a", "b", "c", "d"])[np.arange(RECORDS) % 4]}
        return self.context.wrap_dataset(tf.data.Dataset.from_tensor_slices((features, y)))


class RaisesInModel(Base):
    def model_fn(self, features: Any, labels: Any, mode: str) -> Any:
        return 1 / 0


def broken_reducer(batches: list[np.ndarray]) -> float:
    raise LookupError(f"no mean of {len(batches)} batches")


class RaisesInReducer(Base):
    def model_fn(self, features: Any, labels: Any, mode: str) -> Any:
        spec = super().model_fn(features, labels, mode)
        if mode != ModeKeys.EVAL:
            return spec
        broken = self.context.make_metric(spec.loss, broken_reducer, np.float32)
        return spec._replace(eval_metric_ops={**spec.eval_metric_ops, "broken": broken})


class ExportsAtTheEnd(Base):
    """A trial whose first validation fails, like a killed process."""

    def model_fn(self, features: Any, labels: Any, mode: str) -> Any:
        spec = super().model_fn(features, labels, mode)
        if mode != ModeKeys.EVAL:
            return spec
        marker = Path(self.context.get_data_config()["journal"])

        def fail_once(batches: list[np.ndarray]) -> float:
            if not marker.exists():
                marker.touch()
                raise InterruptedError
            return 0.0

        metric = self.context.make_metric(spec.loss, fail_once, np.float32)
        return spec._replace(eval_metric_ops={**spec.eval_metric_ops, "fails_once": metric})

    def build_validation_spec(self) -> Any:
        exporters = [FinalExporter("final", receiver)]
        return EvalSpec(lambda: self.wrapped_records().batch(50), steps=None, exporters=exporters)


class Exporting(Base):
    """Spec settings that a trial uses or logs."""

    def build_train_spec(self) -> Any:
        return TrainSpec(
            lambda: self.pipeline(self.wrapped_records()),
            max_steps=7,
            saving_listeners=[Listener(self.context.get_data_config()["journal"])],
        )

    def build_validation_spec(self) -> Any:
        return EvalSpec(
            lambda: self.wrapped_records().batch(50),
            steps=2,
            throttle_secs=30,
            exporters=[LatestExporter("latest", receiver)],
        )


class CallRecorder(RunHook):
    """Records calls with the worker's rank. Rank 1 stops training after 60 batches."""

    def __init__(self, context: EstimatorTrialContext, path: str) -> None:
        self._rank = context.distributed.get_rank()
        self._path = path
        self._batches = 0

    def note(self, event: str) -> None:
        with open(self._path, "a", encoding="utf-8") as file:
            file.write(f"{self._rank}:{event}\n")

    def after_run(self, run_context: Any, run_values: Any) -> None:
        self._batches += 1
        if self._rank == 1 and self._batches == 60:
            self.note("asked")
            run_context.request_stop()

    def end(self, session: Any) -> None:
        self.note(f"end:{session.run(tf1.train.get_global_step())}")

    def on_checkpoint_end(self, checkpoint_dir: str) -> None:
        self.note("checkpoint")

    def on_trial_close(self) -> None:
        self.note("close")


class ChiefRecorder(tf1.train.SessionRunHook):
    def __init__(self, notes: CallRecorder) -> None:
        self._notes = notes

    def begin(self) -> None:
        self._notes.note("chief")


class SaveRecorder(tf1.train.CheckpointSaverListener):
    def __init__(self, notes: CallRecorder) -> None:
        self._notes = notes

    def after_save(self, session: Any, global_step_value: int) -> None:
        self._notes.note("saved")


class StoppedByAWorker(Base):
    def __init__(self, context: EstimatorTrialContext) -> None:
        super().__init__(context)
        self.notes = CallRecorder(context, context.get_data_config()["journal"])

    def model_fn(self, features: Any, labels: Any, mode: str) -> Any:
        spec = super().model_fn(features, labels, mode)
        return spec._replace(training_chief_hooks=[ChiefRecorder(self.notes)])

    def build_train_spec(self) -> Any:
        return TrainSpec(
            lambda: self.pipeline(self.wrapped_records()),
            hooks=[self.notes],
            saving_listeners=[SaveRecorder(self.notes)],
        )


class Listener(tf1.train.CheckpointSaverListener):
    def __init__(self, path: str) -> None:
        self._path = path

    def after_save(self, session: Any, global_step_value: int) -> None:
        with open(self._path, "a", encoding="utf-8") as file:
            file.write(f"saved at {global_step_value}\n")


def receiver() -> Any:
    x = tf1.placeholder(tf.float32, [None, FEATURES])
    return export.ServingInputReceiver({"x": x}, {"x": x})
