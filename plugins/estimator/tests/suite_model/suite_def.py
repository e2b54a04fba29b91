"""Estimator trials for the framework plugin suite, for all TensorFlow releases."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from detcore import InvalidHP
from detcore_estimator import (
    Estimator,
    EstimatorSpec,
    EstimatorTrial,
    EstimatorTrialContext,
    EvalSpec,
    ModeKeys,
    RunHook,
    TrainSpec,
    export,
)

tf1 = tf.compat.v1

RECORDS = 50


def records() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(1)
    x = rng.normal(size=(RECORDS, 4)).astype("float32")
    return x, x @ np.array([1.0, -2.0, 0.5, 3.0], "float32")


class Journal(RunHook):
    """Records calls of its methods."""

    def __init__(self, path: str) -> None:
        self._path = Path(path)

    def _note(self, event: str) -> None:
        with self._path.open("a", encoding="utf-8") as journal:
            journal.write(event + "\n")

    def after_create_session(self, session: Any, coord: Any) -> None:
        self._note("train_begin")

    def after_run(self, run_context: Any, run_values: Any) -> None:
        self._note("batch_end")

    def on_checkpoint_end(self, checkpoint_dir: str) -> None:
        self._note("checkpoint")

    def end(self, session: Any) -> None:
        self._note("train_end")


class EvaluationJournal(RunHook):
    """Records the begin and end of validations."""

    def __init__(self, path: str) -> None:
        self._path = Path(path)

    def after_create_session(self, session: Any, coord: Any) -> None:
        with self._path.open("a", encoding="utf-8") as journal:
            journal.write("validation_begin\n")

    def end(self, session: Any) -> None:
        with self._path.open("a", encoding="utf-8") as journal:
            journal.write("validation_end\n")


class AfterBatches(RunHook):
    """Calls a function after a number of batches."""

    def __init__(self, count: int, action: Any) -> None:
        self._left = count
        self._action = action

    def after_run(self, run_context: Any, run_values: Any) -> None:
        self._left -= 1
        if self._left == 0:
            self._action(run_context)


def break_down(run_context: Any) -> None:
    raise ZeroDivisionError("broken on purpose")


def stop(run_context: Any) -> None:
    run_context.request_stop()


def receiver() -> Any:
    x = tf1.placeholder(tf.float32, [None, 4])
    return export.ServingInputReceiver({"x": x}, {"x": x})


class SteadyTrial(EstimatorTrial):
    """A trial with random initial weights only, and records in order."""

    drop_rate = 0.0

    def __init__(self, context: EstimatorTrialContext) -> None:
        self.context = context
        self.rate = context.get_hparam("learning_rate")
        if self.rate <= 0:
            raise InvalidHP("learning_rate has to be above 0")

    def build_estimator(self) -> Any:
        return Estimator(self.model_fn)

    def model_fn(self, features: Any, labels: Any, mode: str) -> EstimatorSpec:
        kernel = tf1.get_variable("kernel", [4, 8])
        hidden = tf.nn.relu(features["x"] @ kernel)
        if mode == ModeKeys.TRAIN and self.drop_rate:
            hidden = tf.nn.dropout(hidden, rate=self.drop_rate)
        answers = tf.squeeze(hidden @ tf1.get_variable("output", [8, 1]), axis=1)
        if mode == ModeKeys.PREDICT:
            outputs = {"serving_default": export.PredictOutput({"answer": answers})}
            return EstimatorSpec(mode, predictions={"answer": answers}, export_outputs=outputs)
        loss = tf.reduce_mean(tf.square(answers - labels))
        if mode == ModeKeys.EVAL:
            error = tf1.metrics.mean_absolute_error(labels, answers)
            return EstimatorSpec(mode, loss=loss, eval_metric_ops={"mae": error})
        optimizer = self.context.wrap_optimizer(tf1.train.AdamOptimizer(self.rate))
        train_op = optimizer.minimize(loss, global_step=tf1.train.get_global_step())
        return EstimatorSpec(mode, loss=loss, train_op=train_op)

    def hooks(self) -> list[RunHook]:
        return []

    def evaluation_hooks(self) -> list[RunHook]:
        return []

    def build_train_spec(self) -> Any:
        return TrainSpec(lambda: self.batches(self.wrapped_records()), hooks=self.hooks())

    def build_validation_spec(self) -> Any:
        hooks = self.evaluation_hooks()
        return EvalSpec(lambda: self.wrapped_records().batch(10), steps=None, hooks=hooks)

    def wrapped_records(self) -> Any:
        x, y = records()
        return self.context.wrap_dataset(tf.data.Dataset.from_tensor_slices(({"x": x}, y)))

    def batches(self, dataset: Any) -> Any:
        return dataset.batch(self.context.get_per_slot_batch_size(), drop_remainder=True)


class LineTrial(SteadyTrial):
    """A trial with shuffled data, dropout and hooks."""

    drop_rate = 0.3

    def build_serving_input_receiver_fns(self) -> dict[str, Any]:
        return {"answers": receiver}

    def batches(self, dataset: Any) -> Any:
        return super().batches(dataset.shuffle(RECORDS))

    def hooks(self) -> list[RunHook]:
        path = self.context.get_data_config().get("journal")
        return [Journal(path)] if path else []

    def evaluation_hooks(self) -> list[RunHook]:
        path = self.context.get_data_config().get("journal")
        return [EvaluationJournal(path)] if path else []


class BrokenTrial(SteadyTrial):
    def hooks(self) -> list[RunHook]:
        return [AfterBatches(6, break_down)]


class StoppingTrial(SteadyTrial):
    def hooks(self) -> list[RunHook]:
        return [AfterBatches(9, stop)]
