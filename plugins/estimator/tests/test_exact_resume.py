"""A stopped and resumed trial ends bit-identical to an uninterrupted one."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from estimator_fakes import (
    Classifier,
    FakeClock,
    assert_same,
    dense,
    open_controller,
    train,
    variables_in,
)

import detcore_estimator
from detcore_estimator.tensorflow_versions import tf, tf1

UNTIL = 23


def run(trial_class: Any, tmp_path: Path, directory: Path, **settings: Any) -> FakeClock:
    random.seed(5)
    np.random.seed(5)
    periods = {"until": UNTIL, "validate_every": 5, "save_every": 10}
    return train(trial_class, tmp_path, directory, **periods, **settings)


class Repeated(Classifier):
    def pipeline(self, dataset: Any) -> Any:
        return dataset.shuffle(20).repeat().batch(8).prefetch(2)


class BatchedThenRepeated(Classifier):
    def pipeline(self, dataset: Any) -> Any:
        return dataset.shuffle(50).batch(8).repeat()


class RandomMap(Classifier):
    def pipeline(self, dataset: Any) -> Any:
        def noisy(features: Any, label: Any) -> Any:
            return features + tf.random.normal([4], stddev=0.1), label

        return dataset.map(noisy).shuffle(50).batch(8)


class UnknownLength(Classifier):
    def pipeline(self, dataset: Any) -> Any:
        dataset = dataset.shuffle(50)
        return dataset.filter(lambda features, label: features[0] > -1.0).batch(8)


class Averaged(Classifier):
    """Evaluates moving averages. Its own saver maps their names."""

    def change(self, spec: Any, mode: str) -> dict[str, Any]:
        step = tf1.train.get_global_step()
        averages = tf1.train.ExponentialMovingAverage(0.9, step)
        if mode == "train":
            with tf1.control_dependencies([spec.train_op]):
                return {"train_op": averages.apply(tf1.trainable_variables())}
        saver = tf1.train.Saver(averages.variables_to_restore())
        return {"scaffold": tf1.train.Scaffold(saver=saver)}


class PartialSaver(Classifier):
    """A trial whose saver omits the optimizer's state."""

    def change(self, spec: Any, mode: str) -> dict[str, Any]:
        variables = [*tf1.trainable_variables(), tf1.train.get_global_step()]
        return {"scaffold": tf1.train.Scaffold(saver=tf1.train.Saver(variables))}


class RandomMetric(Classifier):
    """A trial whose validation and training hook draw from NumPy's generator."""

    def __init__(self, context: Any) -> None:
        super().__init__(context)
        self.hooks = (FeedsNoise(),)

    def more_metrics(self, logits: Any) -> dict[str, Any]:
        def noisy(batches: Any) -> float:
            return float(np.random.normal())

        return {"noise": self.context.experimental.make_metric(logits, noisy, np.float32)}

    def make_spec(self, features: Any, labels: Any, mode: str) -> Any:
        if mode == "train":
            features += tf1.placeholder_with_default(np.zeros(4, np.float32), [4], name="noise")
        return super().make_spec(features, labels, mode)


class FeedsNoise(tf1.train.SessionRunHook):  # type: ignore[misc]
    def before_run(self, run_context: Any) -> Any:
        value = np.random.normal(size=4) + random.random()
        return tf1.train.SessionRunArgs(None, {"noise:0": value.astype(np.float32)})


class EveryRandomOp(Classifier):
    def make_spec(self, features: Any, labels: Any, mode: str) -> Any:
        if mode == "train":
            size = tf.shape(features)
            features += (
                tf.random.uniform(size)
                + tf.random.normal(size)
                + tf.random.truncated_normal(size)
                + tf.cast(tf.random.uniform(size, 0, 5, tf.int32), tf.float32)
                + tf.cast(tf.random.categorical(features, 4), tf.float32)
            )
        return super().make_spec(features, labels, mode)


class NormalizedBatches(Classifier):
    """A trial that updates a moving mean in parallel with the training step."""

    def make_spec(self, features: Any, labels: Any, mode: str) -> Any:
        mean, variance = tf.nn.moments(features, [0])
        moving = tf1.get_variable("moving_mean", [4], trainable=False)
        center = mean if mode == "train" else moving
        features = (features - center) / tf.sqrt(variance + 1e-3)
        spec = super().make_spec(features, labels, mode)
        if mode != "train":
            return spec
        update = tf1.assign(moving, 0.9 * moving + 0.1 * mean)
        return spec._replace(train_op=tf.group(spec.train_op, update))


class StreamingMetric(Classifier):
    """Reports a mean over all previous batches. Its sums are local variables."""

    def make_spec(self, features: Any, labels: Any, mode: str) -> Any:
        if mode == "train":
            _, update = tf1.metrics.mean(features)
            tf1.summary.scalar("mean_so_far", update)
        return super().make_spec(features, labels, mode)


CASES = [
    Classifier,
    Repeated,
    BatchedThenRepeated,
    RandomMap,
    UnknownLength,
    Averaged,
    PartialSaver,
    RandomMetric,
    EveryRandomOp,
    NormalizedBatches,
    StreamingMetric,
]


# The seventh batch ends an epoch of the plain dataset, the twelfth does not.
STOPS = [
    pytest.param(case, stop, id=f"{case.__name__}-{stop}", marks=marks)
    for case in CASES
    for stop, marks in ((7, () if case is Classifier else pytest.mark.soak), (12, ()))
]


@pytest.mark.filterwarnings(
    "ignore:Seed 11 from outer graph"
)  # the trial's seed, in a map function
@pytest.mark.parametrize(("trial_class", "stop"), STOPS)
def test_resumed_equals_uninterrupted(
    tmp_path: Path, trial_class: type[Classifier], stop: int
) -> None:
    straight = run(trial_class, tmp_path, tmp_path / "straight")
    stopped = run(trial_class, tmp_path, tmp_path / "stopped", stop_at=stop)
    assert stopped.steps_completed == stop
    resumed = run(trial_class, tmp_path, tmp_path / "stopped", resume=stop)

    assert stopped.batches + resumed.batches == straight.batches
    assert resumed.validations == [v for v in straight.validations if v[0] > stop]
    variables, expected = (variables_in(tmp_path / f"{n}/{UNTIL}") for n in ("stopped", "straight"))
    assert_same(variables, expected)


def test_dropout_differs_at_each_step(tmp_path: Path) -> None:
    masks: list[bytes] = []

    class Watch(tf1.train.SessionRunHook):  # type: ignore[misc]
        def before_run(self, run_context: Any) -> Any:
            return tf1.train.SessionRunArgs("mask:0")

        def after_run(self, run_context: Any, run_values: Any) -> None:
            masks.append(run_values.results.tobytes())

    class Masked(Classifier):
        hooks = (Watch(),)

        def change(self, spec: Any, mode: str) -> dict[str, Any]:
            tf.identity(tf.nn.dropout(tf.ones([100]), rate=0.5), name="mask")
            return {}

    run(Masked, tmp_path, tmp_path / "a")
    assert len(set(masks)) == UNTIL


def test_averages_are_validated(tmp_path: Path) -> None:
    plain = run(Classifier, tmp_path, tmp_path / "plain")
    averaged = run(Averaged, tmp_path, tmp_path / "averaged")

    # The steps are equal. The moving averages lag behind, so the validation losses differ.
    assert [b["loss"] for b in plain.batches] == [b["loss"] for b in averaged.batches]
    assert plain.validations[0][1]["loss"] != averaged.validations[0][1]["loss"]


class VariableRate(Classifier):
    """A trial with its learning rate in a variable, like Keras optimizers."""

    rate = 0.1
    kind = "variable"

    def make_spec(self, features: Any, labels: Any, mode: str) -> Any:
        loss = tf1.losses.sparse_softmax_cross_entropy(labels, dense(features, 2, "logits"))
        train_op = None
        if mode == "train":
            train_op = self.train_op(self.context.wrap_optimizer(self.make_optimizer)(), loss)
        return detcore_estimator.EstimatorSpec(mode, loss=loss, train_op=train_op)

    def make_optimizer(self) -> Any:
        if self.kind == "legacy":
            return tf.keras.optimizers.legacy.SGD(self.rate)
        rate = tf1.get_variable("rate", initializer=self.rate, trainable=False)
        return tf1.train.GradientDescentOptimizer(rate)

    def train_op(self, optimizer: Any, loss: Any) -> Any:
        weights = tf1.trainable_variables()
        pairs = zip(tf.gradients(loss, weights), weights, strict=True)
        step = tf1.train.get_or_create_global_step()
        return tf.group(optimizer.apply_gradients(list(pairs)), tf1.assign_add(step, 1))


@pytest.mark.parametrize("kind", ["variable", *([] if hasattr(tf.keras, "ops") else ["legacy"])])
def test_new_learning_rate_is_used(tmp_path: Path, kind: str) -> None:
    """A rate of 0 changes no weights, although the source was trained with another rate."""
    source = tmp_path / "source" / str(UNTIL)
    run(type("Source", (VariableRate,), {"kind": kind}), tmp_path, source.parent)
    with open_controller(
        type("Started", (VariableRate,), {"kind": kind, "rate": 0.0}), tmp_path
    ) as controller:
        controller.start_from(source)
        controller.run(FakeClock(controller, until=3, directory=tmp_path / "started"))
    variables = variables_in(tmp_path / "started/3")
    assert variables["global_step"] == UNTIL + 3
    np.testing.assert_array_equal(variables["logits/kernel"], variables_in(source)["logits/kernel"])


class WarmStarted(Classifier):
    """A trial that starts from a model with the same first layer."""

    source: Path

    def change(self, spec: Any, mode: str) -> dict[str, Any]:
        if mode != "infer":
            dense(tf.zeros([1, 4]), 3, "another")
        return {}

    def build_estimator(self) -> Any:
        settings = detcore_estimator.WarmStartSettings(
            str(self.source), vars_to_warm_start="hidden/"
        )
        return detcore_estimator.Estimator(self.model_fn, warm_start_from=settings)


def test_warm_start_sets_named_variables(tmp_path: Path) -> None:
    WarmStarted.source = tmp_path / "source" / str(UNTIL)
    run(Classifier, tmp_path, tmp_path / "source")
    source = variables_in(WarmStarted.source)

    folder = tmp_path / "warm"
    folder.mkdir()
    with open_controller(WarmStarted, tmp_path) as controller:
        controller.save(folder)
    variables = variables_in(folder)
    np.testing.assert_array_equal(variables["hidden/kernel"], source["hidden/kernel"])
    assert (variables["logits/kernel"] != source["logits/kernel"]).any()
    assert variables["global_step"] == 0

    WarmStarted.source = tmp_path / "gone"
    with open_controller(WarmStarted, tmp_path) as controller:
        controller.restore(folder)
