"""Train, validate, save and restore with all structures of features and labels."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from estimator_fakes import (
    FEATURES,
    LABELS,
    Classifier,
    assert_same,
    gradient_settings,
    make_context,
    train,
    variables_in,
)

import detcore_estimator
from detcore.errors import CheckFailedError
from detcore_estimator.tensorflow_versions import tf, tf1

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
    """A model of any batch structure, with or without an optimizer (like boosted trees)."""

    data: Any = None
    has_optimizer = True

    def make_spec(self, features: Any, labels: Any, mode: str) -> Any:
        expected = self.data if isinstance(self.data, tuple) else (self.data, None)
        tf.nest.assert_same_structure((features, labels), expected)
        total = tf1.get_variable("total", [], initializer=tf1.zeros_initializer())
        parts = [part for part in tf.nest.flatten((features, labels)) if part is not None]
        mean = tf.add_n([tf.reduce_mean(part) for part in parts])
        loss = tf.square(mean - total)
        if mode == "eval":
            metrics = {"mean": tf1.metrics.mean(mean)}
            return detcore_estimator.EstimatorSpec(mode, loss=loss, eval_metric_ops=metrics)
        step = tf1.train.get_global_step()
        if self.has_optimizer:
            optimizer = self.context.wrap_optimizer(tf1.train.MomentumOptimizer(0.1, 0.9))
            train_op = optimizer.minimize(loss, global_step=step)
        else:
            assert self.context.wrap_optimizer(None) is None
            with tf.control_dependencies([loss]):  # reads the total before it changes
                train_op = tf.group(tf1.assign_add(total, 0.5 * mean), tf1.assign_add(step, 1))
        return detcore_estimator.EstimatorSpec(mode, loss=loss, train_op=train_op)

    def records(self, count: int = 24) -> Any:
        parts = tuple(part for part in tf.nest.flatten(self.data) if part is not None)
        return tf.data.Dataset.from_tensor_slices(parts)

    def pipeline(self, dataset: Any) -> Any:
        def pack(*batch: Any) -> Any:
            parts = iter(batch)
            return tf.nest.map_structure(
                lambda part: None if part is None else next(parts), self.data
            )

        return super().pipeline(dataset).map(pack)

    def validation_data(self) -> Any:
        return self.train_data()


def assert_resumes(trial: type[Structured], tmp_path: Path) -> None:
    periods = {"until": 8, "unit": 4, "validate_every": 4, "save_every": 4}
    uninterrupted = train(trial, tmp_path, tmp_path / "whole", **periods)
    assert uninterrupted.records == [32, 32]
    assert uninterrupted.validated_records == [24, 24]
    end = tmp_path / "whole" / "8"
    expected = variables_in(end.rename(tmp_path / "end"))
    resumed = train(trial, tmp_path, tmp_path / "whole", resume=4, **periods)
    assert resumed.training == uninterrupted.training[1:]
    assert resumed.validations == uninterrupted.validations[1:]
    assert_same(variables_in(end), expected)


@pytest.mark.parametrize("name", STRUCTURES)
def test_batch_structures_resume_exactly(tmp_path: Path, name: str) -> None:
    assert_resumes(type("Trial", (Structured,), {"data": STRUCTURES[name]}), tmp_path)


def test_an_estimator_without_an_optimizer(tmp_path: Path) -> None:
    trial = type("Trial", (Structured,), {"data": (X, Y), "has_optimizer": False})
    assert_resumes(trial, tmp_path)


class WithKeras(Structured):
    """Unnamed Keras layers, and dropout with its own variable."""

    data = (X, Y)

    def make_spec(self, features: Any, labels: Any, mode: str) -> Any:
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


def test_keras_layers_resume_exactly(tmp_path: Path) -> None:
    assert_resumes(WithKeras, tmp_path)


def test_aggregation_needs_an_optimizer(tmp_path: Path) -> None:
    context = make_context(tmp_path, settings=gradient_settings(aggregation_frequency=2))
    with pytest.raises(CheckFailedError, match=r"received None.*with 1 worker\(s\).*frequency 2"):
        context.wrap_optimizer(None)
