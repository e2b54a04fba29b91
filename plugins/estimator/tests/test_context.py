"""The context's methods, in trials and outside of a run."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from estimator_fakes import gradient_settings, make_context
from estimator_models import run_python

import detcore_estimator
from detcore import TrialContext
from detcore.errors import CheckFailedError, InvalidExperimentError
from detcore_estimator.estimator_context import EstimatorContext, EstimatorTrialContext
from detcore_estimator.tensorflow_versions import tf, tf1


@dataclasses.dataclass
class Worker:
    """One of several ranks, without communication."""

    rank: int
    size: int

    def get_rank(self) -> int:
        return self.rank

    def get_size(self) -> int:
        return self.size


def read_elements(make: Any) -> list[Any]:
    """Return the elements of a dataset that a function creates in a graph."""
    with tf.Graph().as_default():
        iterator = tf1.data.make_initializable_iterator(make())
        following = iterator.get_next()
        values = []
        with tf1.Session() as session:
            session.run(iterator.initializer)
            while True:
                try:
                    values.append(session.run(following))
                except tf.errors.OutOfRangeError:
                    return values


def test_documented_names() -> None:
    assert issubclass(detcore_estimator.EstimatorTrialContext, detcore_estimator.EstimatorContext)
    assert issubclass(detcore_estimator.EstimatorContext, TrialContext)
    documented = {
        "distributed", "experimental", "from_config", "get_data_config", "get_experiment_config",
        "get_experiment_id", "get_global_batch_size", "get_hparam", "get_hparams",
        "get_initial_batch", "get_per_slot_batch_size", "get_stop_requested",
        "get_tensorboard_path", "get_trial_id", "get_trial_seed", "make_metric",
        "set_stop_requested", "wrap_dataset", "wrap_optimizer",
    }  # fmt: skip
    context = EstimatorTrialContext.from_config({"hyperparameters": {"global_batch_size": 8}})
    assert documented <= set(dir(context))
    experimental = {"cache_train_dataset", "cache_validation_dataset", "make_metric"}
    assert experimental <= set(dir(context.experimental))
    assert isinstance(context.experimental, detcore_estimator.EstimatorExperimentalContext)


def test_optimizers(tmp_path: Path) -> None:
    context = make_context(tmp_path)
    optimizer = tf1.train.AdamOptimizer(0.1)
    assert context.wrap_optimizer(optimizer) is optimizer
    assert context.wrap_optimizer(optimizer) is optimizer
    assert context.wrapped_optimizers == [optimizer]
    # Premade Estimators also accept these.
    assert context.wrap_optimizer("Adagrad") == "Adagrad"
    assert callable(context.wrap_optimizer(lambda: tf1.train.GradientDescentOptimizer(0.1)))
    keras_optimizer = tf.keras.optimizers.SGD(0.1)
    assert context.wrap_optimizer(keras_optimizer) is keras_optimizer
    assert len(context.wrapped_optimizers) == 4


@pytest.mark.parametrize("value", [3, 0.1, {"learning_rate": 0.1}])
def test_non_optimizers_are_rejected(tmp_path: Path, value: Any) -> None:
    context = make_context(tmp_path)
    with pytest.raises(InvalidExperimentError, match=r"received .*, not an optimizer"):
        context.wrap_optimizer(value)
    assert context.wrapped_optimizers == []


def test_aggregating_optimizer_keeps_its_class(tmp_path: Path) -> None:
    context = make_context(tmp_path, settings=gradient_settings(aggregation_frequency=4))
    optimizer = tf1.train.AdamOptimizer()
    assert context.wrap_optimizer(optimizer) is optimizer
    assert isinstance(optimizer, tf1.train.AdamOptimizer)
    assert type(optimizer) is not tf1.train.AdamOptimizer
    assert context.wrap_optimizer(optimizer) is optimizer
    assert len(context.wrapped_optimizers) == 1
    with pytest.raises(CheckFailedError, match=r"'Adam'.*with 1 worker.*aggregation_frequency 4"):
        context.wrap_optimizer("Adam")
    created = context.wrap_optimizer(lambda: tf1.train.GradientDescentOptimizer(0.1))()
    assert type(created) is not tf1.train.GradientDescentOptimizer
    context = make_context(tmp_path)
    plain = context.wrap_optimizer(tf1.train.AdamOptimizer())
    assert type(plain) is tf1.train.AdamOptimizer


def test_optimizers_of_several_workers(tmp_path: Path) -> None:
    class NotKnown:
        def apply_gradients(self, grads_and_vars: Any) -> None:
            raise NotImplementedError

    context = make_context(tmp_path, distributed=Worker(1, 2))
    with pytest.raises(CheckFailedError, match=r"'Adam'.*with 2 worker"):
        context.wrap_optimizer("Adam")
    with pytest.raises(InvalidExperimentError, match="cannot be exchanged between workers"):
        context.wrap_optimizer(NotKnown())
    wrapped = context.wrap_optimizer(tf1.train.AdamOptimizer())
    assert type(wrapped) is not tf1.train.AdamOptimizer


@pytest.mark.parametrize("size", [1, 2, 3])
def test_shards_partition_the_data(tmp_path: Path, size: int) -> None:
    def read(rank: int, size: int, **settings: Any) -> list[int]:
        context = make_context(tmp_path, distributed=Worker(rank, size))
        values = read_elements(lambda: context.wrap_dataset(tf.data.Dataset.range(7), **settings))
        assert len(context.wrapped_datasets) == 1
        return [int(value) for value in values]

    shards = [read(rank, size) for rank in range(size)]
    assert shards == [list(range(7))[rank::size] for rank in range(size)]
    assert read(1, 2, shard_dataset=False) == list(range(7))


def test_non_datasets_are_returned(tmp_path: Path) -> None:
    context = make_context(tmp_path)
    pair = (np.zeros(3), np.ones(3))
    assert context.wrap_dataset(pair) is pair
    assert context.wrapped_datasets == []


def test_unmanaged_context_returns_its_arguments() -> None:
    context = EstimatorTrialContext.from_config({"hyperparameters": {"global_batch_size": 8}})
    dataset = tf.data.Dataset.range(3)
    assert context.wrap_dataset(dataset) is dataset
    assert context.wrap_dataset(3) == 3
    assert context.wrap_optimizer("adam") == "adam"
    assert context.wrap_optimizer(None) is None
    assert (context.wrapped_datasets, context.wrapped_optimizers) == ([], [])


def test_both_make_metric_methods(tmp_path: Path) -> None:
    context = make_context(tmp_path)
    with tf.Graph().as_default(), tf1.Session() as session:
        pairs = [
            context.make_metric(metric=tf.constant(2.0), reducer=len, numpy_dtype=np.int32),
            context.experimental.make_metric(tf.constant(2.0), sum, "float32"),
        ]
        session.run(tf1.local_variables_initializer())
        session.run([update for _, update in pairs])
        assert session.run([value for value, _ in pairs]) == [1, 2.0]
    assert context.reducers is context.reducers


NO_TENSORFLOW = """
import sys
from detcore_estimator import EstimatorTrialContext, MetricReducer
context = EstimatorTrialContext.from_config({})
context.wrap_dataset(3)
assert 'tensorflow' not in sys.modules
"""


def test_context_does_not_import_tensorflow() -> None:
    run_python("-W", "error", "-c", NO_TENSORFLOW)
    assert EstimatorContext.__module__ == "detcore_estimator.estimator_context"
