"""All structures of features and labels: train, validate, save, restore; and no optimizer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from estimator_fakes import FEATURES, LABELS, Classifier, FakeClock, make_context, variables_in

import detcore_estimator
from detcore.errors import CheckFailedError
from detcore_estimator._controller import EstimatorController
from detcore_estimator._tf import tf, tf1

X, Y = FEATURES[:24], LABELS[:24].astype("float32")
STRUCTURES: dict[str, Any] = {
    "features": X,
    "dict": {"a": X, "b": Y},
    "features, labels": (X, Y),
    "dict, labels": ({"b": Y, "a": X}, Y),
    "dict, dict": ({"a": X}, {"p": Y, "q": X}),
    "nested": ({"a": X, "b": (X, Y)}, (Y, {"q": X})),
    "features, None": (X, None),
    "dict, None": ({"a": X}, None),
    "None inside": ({"a": X, "b": None}, (Y, {"q": None})),
}


class Structured(Classifier):
    """A model of whatever parts there are; boosted trees, say, are trained without an optimizer."""

    data: Any = None
    has_optimizer = True

    def model_fn(self, features: Any, labels: Any, mode: str) -> Any:
        data = self.data
        given = data if isinstance(data, tuple) else (data, None)
        tf.nest.assert_same_structure((features, labels), given)
        total = tf1.get_variable("total", [], initializer=tf1.zeros_initializer())
        parts = [part for part in tf.nest.flatten((features, labels)) if part is not None]
        mean = tf.add_n([tf.reduce_mean(part) for part in parts])
        loss = tf.square(mean - total)
        if mode == "eval":
            return detcore_estimator.EstimatorSpec(
                mode, loss=loss, eval_metric_ops={"mean": tf1.metrics.mean(mean)}
            )
        step = tf1.train.get_global_step()
        if self.has_optimizer:
            optimizer = self.context.wrap_optimizer(tf1.train.MomentumOptimizer(0.1, 0.9))
            train_op = optimizer.minimize(loss, global_step=step)
        else:
            assert self.context.wrap_optimizer(None) is None
            with tf.control_dependencies([loss]):  # which reads the total before it changes
                train_op = tf.group(tf1.assign_add(total, 0.5 * mean), tf1.assign_add(step, 1))
        return detcore_estimator.EstimatorSpec(mode, loss=loss, train_op=train_op)

    def train_data(self) -> Any:
        data = self.data
        parts = tuple(part for part in tf.nest.flatten(data) if part is not None)
        dataset = tf.data.Dataset.from_tensor_slices(parts)
        dataset = self.context.wrap_dataset(dataset).shuffle(24, seed=3).batch(8)

        def packed(*batch: Any) -> Any:
            rest = iter(batch)
            return tf.nest.map_structure(lambda part: None if part is None else next(rest), data)

        return dataset.map(packed)

    validation_data = train_data


def train(
    trial: type[Structured], tmp_path: Path, folder: str, *, start: int = 0, until: int = 8
) -> FakeClock:
    context = make_context(tmp_path)
    controller = EstimatorController(trial(context), context)
    if start:
        controller.restore(tmp_path / "whole" / str(start))
    clock = FakeClock(
        controller, until=until, unit=4, validate_every=4, save_every=4,
        directory=tmp_path / folder, start=start, context=context,
    )  # fmt: skip
    controller.run(clock)
    controller.close()
    return clock


def assert_resumes(trial: type[Structured], tmp_path: Path) -> None:
    whole = train(trial, tmp_path, "whole")
    assert whole.records == [32, 32]
    assert whole.validated_records == [24, 24]
    rest = train(trial, tmp_path, "rest", start=4)
    assert rest.training == whole.training[1:]
    assert rest.validations == whole.validations[1:]
    rest_of_it, whole_of_it = (variables_in(tmp_path / name / "8") for name in ("rest", "whole"))
    np.testing.assert_equal(rest_of_it, whole_of_it)


@pytest.mark.parametrize("name", STRUCTURES)
def test_batches_of_any_structure(tmp_path: Path, name: str) -> None:
    assert_resumes(type("Trial", (Structured,), {"data": STRUCTURES[name]}), tmp_path)


def test_an_estimator_without_an_optimizer(tmp_path: Path) -> None:
    trial = type("Trial", (Structured,), {"data": (X, Y), "has_optimizer": False})
    assert_resumes(trial, tmp_path)


class WithKeras(Structured):
    """Layers without names, which Keras numbers, and dropout with a variable of its own."""

    data = (X, Y)

    def model_fn(self, features: Any, labels: Any, mode: str) -> Any:
        layers = tf.keras.layers
        is_training = mode == "train"
        hidden = layers.Dropout(0.3)(layers.Dense(8)(features), training=is_training)
        value = layers.Dense(1)(hidden)
        loss = tf1.losses.mean_squared_error(labels, value[:, 0])
        optimizer = self.context.wrap_optimizer(tf1.train.AdamOptimizer(0.01))
        step = tf1.train.get_global_step()
        train_op = optimizer.minimize(loss, global_step=step) if is_training else None
        metrics = {"mean": tf1.metrics.mean(value)}
        return detcore_estimator.EstimatorSpec(
            mode, loss=loss, train_op=train_op, eval_metric_ops=metrics
        )


def test_layers_of_keras(tmp_path: Path) -> None:
    assert_resumes(WithKeras, tmp_path)


def test_no_optimizer_cannot_add_up_gradients(tmp_path: Path) -> None:
    context = make_context(tmp_path)
    context.setup.config["optimizations"] = {"aggregation_frequency": 2}
    with pytest.raises(CheckFailedError, match=r"given None.*with 1 worker\(s\).*frequency 2"):
        context.wrap_optimizer(None)
