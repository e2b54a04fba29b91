"""Stopped and resumed, a trial ends as if it had never been interrupted, bit for bit."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from estimator_fakes import (
    FEATURES,
    LABELS,
    Classifier,
    FakeClock,
    dense,
    make_context,
    variables_in,
)

import detcore_estimator
from detcore_estimator._controller import EstimatorController
from detcore_estimator._tf import tf, tf1

UNTIL = 23


def train(
    trial_class: type[Classifier],
    tmp_path: Path,
    directory: Path,
    *,
    resume: int = 0,
    stop_at: int = 0,
) -> FakeClock:
    context = make_context(tmp_path)
    random.seed(5)
    np.random.seed(5)
    controller = EstimatorController(trial_class(context), context)
    if resume:
        controller.restore(directory / str(resume))

    clock = FakeClock(
        controller,
        until=UNTIL,
        unit=5,
        validate_every=5,
        save_every=10,
        directory=directory,
        start=resume,
        stop_at=stop_at,
        context=context,
    )
    try:
        controller.run(clock)
    finally:
        controller.close()
    return clock


class Repeated(Classifier):
    def train_data(self) -> Any:
        dataset = tf.data.Dataset.from_tensor_slices((FEATURES, LABELS))
        return self.context.wrap_dataset(dataset).shuffle(20).repeat().batch(8).prefetch(2)


class BatchedThenRepeated(Classifier):
    def train_data(self) -> Any:
        dataset = tf.data.Dataset.from_tensor_slices((FEATURES, LABELS))
        return self.context.wrap_dataset(dataset).shuffle(50).batch(8).repeat()


class RandomMap(Classifier):
    def train_data(self) -> Any:
        def noisy(features: Any, label: Any) -> Any:
            return features + tf.random.normal([4], stddev=0.1), label

        dataset = tf.data.Dataset.from_tensor_slices((FEATURES, LABELS))
        return self.context.wrap_dataset(dataset).map(noisy).shuffle(50).batch(8)


class UnknownLength(Classifier):
    def train_data(self) -> Any:
        dataset = tf.data.Dataset.from_tensor_slices((FEATURES, LABELS))
        dataset = self.context.wrap_dataset(dataset).shuffle(50)
        return dataset.filter(lambda features, label: features[0] > -1.0).batch(8)


class Averaged(Classifier):
    """Evaluates moving averages, under names that a saver of its own maps."""

    def model_fn(self, features: Any, labels: Any, mode: str) -> Any:
        spec = super().model_fn(features, labels, mode)
        step = tf1.train.get_global_step()
        averages = tf1.train.ExponentialMovingAverage(0.9, step)
        if mode == "train":
            with tf1.control_dependencies([spec.train_op]):
                return spec._replace(train_op=averages.apply(tf1.trainable_variables()))
        saver = tf1.train.Saver(averages.variables_to_restore())
        return spec._replace(scaffold=tf1.train.Scaffold(saver=saver))


class PartialSaver(Classifier):
    """Its saver leaves out the optimizer's state."""

    def model_fn(self, features: Any, labels: Any, mode: str) -> Any:
        spec = super().model_fn(features, labels, mode)
        variables = [*tf1.trainable_variables(), tf1.train.get_global_step()]
        return spec._replace(scaffold=tf1.train.Scaffold(saver=tf1.train.Saver(variables)))


class RandomMetric(Classifier):
    """Its validation draws from NumPy's generator, and so does a training hook."""

    def __init__(self, context: Any) -> None:
        super().__init__(context)
        self.context = context
        self.hooks = (FeedsNoise(),)

    def more_metrics(self, logits: Any) -> dict[str, Any]:
        def noisy(batches: Any) -> float:
            return float(np.random.normal())

        return {"noise": self.context.experimental.make_metric(logits, noisy, np.float32)}

    def model_fn(self, features: Any, labels: Any, mode: str) -> Any:
        if mode == "train":
            noise = tf1.placeholder_with_default(np.zeros(4, np.float32), [4], name="noise")
            features = features + noise
        return super().model_fn(features, labels, mode)


class FeedsNoise(tf1.train.SessionRunHook):  # type: ignore[misc]
    def before_run(self, run_context: Any) -> Any:
        value = np.random.normal(size=4) + random.random()
        return tf1.train.SessionRunArgs(None, {"noise:0": value.astype(np.float32)})


class EveryRandomOp(Classifier):
    def model_fn(self, features: Any, labels: Any, mode: str) -> Any:
        if mode == "train":
            size = tf.shape(features)
            features = (
                features
                + tf.random.uniform(size)
                + tf.random.normal(size)
                + tf.random.truncated_normal(size)
                + tf.cast(tf.random.uniform(size, 0, 5, tf.int32), tf.float32)
                + tf.cast(tf.random.categorical(features, 4), tf.float32)
            )
        return super().model_fn(features, labels, mode)


class NormalizedBatches(Classifier):
    """Moving mean and variance, updated beside the training step."""

    def model_fn(self, features: Any, labels: Any, mode: str) -> Any:
        mean, variance = tf.nn.moments(features, [0])
        moving = tf1.get_variable("moving_mean", [4], trainable=False)
        if mode == "train":
            update = tf1.assign(moving, 0.9 * moving + 0.1 * mean)
            tf1.add_to_collection(tf1.GraphKeys.UPDATE_OPS, update)
        else:
            mean = moving
        features = (features - mean) / tf.sqrt(variance + 1e-3)
        spec = super().model_fn(features, labels, mode)
        if mode == "train":
            with tf1.control_dependencies(tf1.get_collection(tf1.GraphKeys.UPDATE_OPS)):
                spec = spec._replace(train_op=tf.group(spec.train_op))
        return spec


class StreamingMetric(Classifier):
    """Reports its accuracy over all batches so far, whose sums are local variables."""

    def model_fn(self, features: Any, labels: Any, mode: str) -> Any:
        spec = super().model_fn(features, labels, mode)
        if mode == "train":
            _, update = tf1.metrics.mean(features)
            tf1.summary.scalar("mean_so_far", update)
        return spec


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


# The seventh batch ends an epoch of the plain dataset; the twelfth ends none.
STOPS = [
    pytest.param(case, stop, id=f"{case.__name__}-{stop}", marks=marks)
    for case in CASES
    for stop, marks in (
        (7, [] if case is Classifier else [pytest.mark.soak]),
        (12, []),
    )
]


@pytest.mark.filterwarnings("ignore:Seed 11 from outer graph")  # the trial's, in a map function
@pytest.mark.parametrize(("trial_class", "stop"), STOPS)
def test_resumed_equals_uninterrupted(
    tmp_path: Path, trial_class: type[Classifier], stop: int
) -> None:
    straight = train(trial_class, tmp_path, tmp_path / "straight")
    expected = variables_in(tmp_path / "straight" / str(UNTIL))

    folder = tmp_path / "stopped"
    stopped = train(trial_class, tmp_path, folder, stop_at=stop)
    assert stopped.steps_completed == stop
    resumed = train(trial_class, tmp_path, folder, resume=stop)

    assert stopped.batches + resumed.batches == straight.batches
    validations = [v for v in straight.validations if v[0] > stop]
    assert resumed.validations == validations
    found = variables_in(folder / str(UNTIL))
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value, err_msg=name)


def test_runs_with_the_same_seed_are_equal_and_others_differ(tmp_path: Path) -> None:
    first = train(Classifier, tmp_path, tmp_path / "a")
    again = train(Classifier, tmp_path, tmp_path / "b")
    assert first.batches == again.batches

    class OtherSeed(Classifier):
        def build_estimator(self) -> Any:
            config = detcore_estimator.RunConfig(tf_random_seed=123)
            return detcore_estimator.Estimator(self.model_fn, config=config)

    other = train(OtherSeed, tmp_path, tmp_path / "c")
    assert other.batches[0] != first.batches[0]


def test_dropout_draws_anew_at_each_step(tmp_path: Path) -> None:
    masks: list[bytes] = []

    class Watch(tf1.train.SessionRunHook):  # type: ignore[misc]
        def before_run(self, run_context: Any) -> Any:
            return tf1.train.SessionRunArgs("mask:0")

        def after_run(self, run_context: Any, run_values: Any) -> None:
            masks.append(run_values.results.tobytes())

    class Masked(Classifier):
        hooks = (Watch(),)

        def model_fn(self, features: Any, labels: Any, mode: str) -> Any:
            if mode == "train":
                tf.identity(tf.nn.dropout(tf.ones([100]), rate=0.5), name="mask")
            return super().model_fn(features, labels, mode)

    train(Masked, tmp_path, tmp_path / "a")
    assert len(set(masks)) == UNTIL


def test_an_averaged_model_is_validated_by_its_averages(tmp_path: Path) -> None:
    plain = train(Classifier, tmp_path, tmp_path / "plain")
    averaged = train(Averaged, tmp_path, tmp_path / "averaged")

    # The same steps; the moving averages lag behind, so the losses differ.
    assert [b["loss"] for b in plain.batches] == [b["loss"] for b in averaged.batches]
    assert plain.validations[0][1]["loss"] != averaged.validations[0][1]["loss"]


def test_a_source_gives_its_variables_and_nothing_else(tmp_path: Path) -> None:
    train(Classifier, tmp_path, tmp_path / "source")
    context = make_context(tmp_path)
    controller = EstimatorController(Classifier(context), context)
    controller.start_from(tmp_path / "source" / str(UNTIL))
    assert controller._graph.feed.position == 0
    folder = tmp_path / "copy"
    folder.mkdir()
    controller.save(folder)
    controller.close()

    expected = variables_in(tmp_path / "source" / str(UNTIL))
    for name, value in variables_in(folder).items():
        np.testing.assert_array_equal(value, expected[name], err_msg=name)


class Rated(Classifier):
    """Has its learning rate in a variable, as optimizers of Keras do."""

    rate = 0.1
    kind = "variable"

    def model_fn(self, features: Any, labels: Any, mode: str) -> Any:
        logits = dense(features, 2, "logits")
        loss = tf1.losses.sparse_softmax_cross_entropy(labels, logits)
        if mode != "train":
            return detcore_estimator.EstimatorSpec(mode, loss=loss)
        optimizer = self.context.wrap_optimizer(self.make_optimizer)
        train_op = self.train_op(optimizer(), loss)
        return detcore_estimator.EstimatorSpec(mode, loss=loss, train_op=train_op)

    def make_optimizer(self) -> Any:
        if self.kind == "variable":
            rate = tf1.get_variable("rate", initializer=self.rate, trainable=False)
            return tf1.train.GradientDescentOptimizer(rate)
        optimizers = tf.keras.optimizers
        return (optimizers.legacy if self.kind == "legacy" else optimizers).SGD(self.rate)

    def train_op(self, optimizer: Any, loss: Any) -> Any:
        step = tf1.train.get_or_create_global_step()
        if self.kind == "variable":
            return optimizer.minimize(loss, global_step=step)
        weights = tf1.trainable_variables()
        gradients = tf.gradients(loss, weights)
        applied = optimizer.apply_gradients(list(zip(gradients, weights, strict=True)))
        return tf.group(applied, tf1.assign_add(step, 1))


@pytest.mark.parametrize("kind", ["variable", *([] if hasattr(tf.keras, "ops") else ["legacy"])])
def test_the_new_rate_is_used(tmp_path: Path, kind: str) -> None:
    """A rate of 0 trains nothing, although the source was trained with another rate."""
    train(type("Source", (Rated,), {"kind": kind}), tmp_path, tmp_path / "source")
    context = make_context(tmp_path)
    controller = EstimatorController(
        type("Started", (Rated,), {"kind": kind, "rate": 0.0})(context), context
    )
    controller.start_from(tmp_path / "source" / str(UNTIL))
    clock = FakeClock(controller, until=3, unit=3, save_every=3, directory=tmp_path / "started")
    controller.run(clock)
    controller.close()
    found, source = variables_in(tmp_path / "started/3"), variables_in(tmp_path / f"source/{UNTIL}")
    assert found["global_step"] == UNTIL + 3
    np.testing.assert_array_equal(found["logits/kernel"], source["logits/kernel"])


class WarmStarted(Classifier):
    """Starts from a model whose first layer is like its own."""

    source = ""

    def model_fn(self, features: Any, labels: Any, mode: str) -> Any:
        spec = super().model_fn(features, labels, mode)
        if mode != "infer":
            dense(features, 3, "another")
        return spec

    def build_estimator(self) -> Any:
        settings = detcore_estimator.WarmStartSettings(self.source, vars_to_warm_start="hidden/")
        return detcore_estimator.Estimator(self.model_fn, warm_start_from=settings)


def test_warm_start_fills_the_named_variables_and_only_at_the_first_start(tmp_path: Path) -> None:
    train(Classifier, tmp_path, tmp_path / "source")
    source = variables_in(tmp_path / "source" / str(UNTIL))
    WarmStarted.source = str(tmp_path / "source" / str(UNTIL))

    context = make_context(tmp_path)
    controller = EstimatorController(WarmStarted(context), context)
    folder = tmp_path / "warm"
    folder.mkdir()
    controller.save(folder)
    controller.close()
    found = variables_in(folder)
    np.testing.assert_array_equal(found["hidden/kernel"], source["hidden/kernel"])
    assert (found["logits/kernel"] != source["logits/kernel"]).any()
    assert found["global_step"] == 0

    WarmStarted.source = str(tmp_path / "gone")
    context = make_context(tmp_path)
    controller = EstimatorController(WarmStarted(context), context)
    controller.restore(folder)
    controller.close()
