"""Random operations of a graph continue exactly after a checkpoint."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from estimator_models import run_python
from random_models import DRAWS, SIZE, Model, digest

from detcore_estimator.graph.random_ops import make_random_ops_resumable
from detcore_estimator.tensorflow_versions import tf, tf1


@pytest.mark.parametrize("name", DRAWS)
def test_numbers_resume_at_any_step(name: str) -> None:
    build, _, _ = DRAWS[name]
    model = Model(build)
    assert not model.ops.unsupported
    expected = model.steps(5)
    assert model.session.run(model.ops.counter) == 5
    for step in (0, 1, 4):
        np.testing.assert_array_equal(Model(build).at(step).steps(5 - step), expected[step:])
    assert len({digest([value]) for value in expected}) == 5


@pytest.mark.parametrize("name", DRAWS)
def test_distributions(name: str) -> None:
    build, mean, variance = DRAWS[name]
    values = np.stack(Model(build).steps(40)).astype(np.float64)
    plain = Model(build, rewire=False).step()
    assert (values.shape[1:], Model(build).step().dtype) == (plain.shape, plain.dtype)
    error = np.sqrt(variance / values.size)
    assert abs(values.mean() - mean) < 5 * error
    assert values.var() == pytest.approx(variance, rel=0.02)
    # Steps are independent, and so are the records of a step.
    flat = values.reshape(len(values), -1)
    assert abs(np.corrcoef(flat[0], flat[1])[0, 1]) < 0.05
    assert abs(np.corrcoef(flat[0][1:], flat[0][:-1])[0, 1]) < 0.05


def test_shuffle_is_a_permutation() -> None:
    values = Model(lambda: tf.random.shuffle(tf.range(SIZE))).step()
    assert sorted(values) == list(range(SIZE))


def test_same_numbers_with_v1_behavior() -> None:
    here = [
        f"{name} {digest(Model(build).at(3).steps(2))}" for name, (build, _, _) in DRAWS.items()
    ]
    assert run_python("random_models.py").splitlines() == here


def test_operations_draw_different_numbers() -> None:
    first, second = Model(lambda: [tf.random.uniform([SIZE]) for _ in range(2)]).step()
    assert abs(np.corrcoef(first, second)[0, 1]) < 0.05


def test_equal_seeds_stay_equal() -> None:
    first, second = Model(lambda: [tf.random.uniform([9], seed=4) for _ in range(2)]).step()
    np.testing.assert_array_equal(first, second)


def test_operations_without_seeds() -> None:
    # Without a graph seed, the names of operations determine their numbers.
    with tf.Graph().as_default() as graph:
        values = [tf.identity(tf.random.uniform([9])) for _ in range(2)]
        random_ops = make_random_ops_resumable(graph, values)
        assert random_ops is not None
        with tf1.Session() as session:
            random_ops.set_counter(session, 7)
            first, second = session.run(values)
            again, _ = session.run(values)
    assert not np.array_equal(first, second)
    np.testing.assert_array_equal(first, again)


def test_offset() -> None:
    build = DRAWS["uniform"][0]
    assert digest([Model(build).step()]) != digest([Model(build, offset=1).step()])


def test_gradients_use_the_same_numbers() -> None:
    def build() -> Any:
        inputs = tf.ones([SIZE])
        dropped = tf.nn.dropout(inputs, 0.5)
        return dropped, tf1.gradients(tf.reduce_sum(dropped), inputs)[0]

    model = Model(build)
    for _ in range(3):
        dropped, gradient = model.step()
        np.testing.assert_array_equal(dropped, gradient)


def test_initial_values_are_unchanged() -> None:
    def build() -> Any:
        weights = tf1.get_variable("w", [4, 4], initializer=tf1.glorot_uniform_initializer())
        numbers = tf.random.normal([4, 4])
        other = tf1.get_variable("v", initializer=numbers)
        return weights, other, tf.nn.dropout(weights, 0.5), numbers

    plain, rewired = Model(build, rewire=False), Model(build)
    np.testing.assert_array_equal(rewired.step()[:2], plain.step()[:2])


def test_without_random_operations() -> None:
    def build() -> Any:
        return tf1.get_variable("w", [4, 4], initializer=tf1.glorot_uniform_initializer()) + 1

    assert Model(build).ops is None


def test_unsupported_operations_are_listed() -> None:
    def build() -> Any:
        in_function = tf.function(lambda: tf.random.uniform([2]))()
        sampled = tf.random.log_uniform_candidate_sampler(
            tf.zeros([1, 1], tf.int64), 1, 2, unique=True, range_max=9, seed=1
        )
        looped = tf.while_loop(
            lambda i, x: i < 3, lambda i, x: (i + 1, x + tf.random.uniform([2])), (0, tf.zeros([2]))
        )
        return in_function, sampled, looped, tf.random.uniform([2])

    unsupported = Model(build).ops.unsupported
    assert len(unsupported) == 3
    for part in ("PartitionedCall", "while", "CandidateSampler"):
        assert any(part in name for name in unsupported)


def test_fetched_operation_is_unsupported() -> None:
    with tf.Graph().as_default() as graph:
        numbers = tf.raw_ops.RandomUniform(shape=[2], dtype=tf.float32)
        random_ops = make_random_ops_resumable(graph, [numbers])
    assert random_ops is not None
    assert random_ops.unsupported == [numbers.op.name]


def test_counter_is_not_saved() -> None:
    model = Model(DRAWS["dropout"][0])
    with model.graph.as_default():
        assert not tf1.global_variables()
        assert model.ops.counter in tf1.local_variables()
        assert model.ops.counter.dtype == tf.int64


def test_numbers_precede_the_increment() -> None:
    # A step draws its numbers before its increment.
    model = Model(lambda: tf.random.uniform([1]))
    expected = [float(model.at(step).step()[0]) for step in range(200)]
    model.at(0)
    assert [float(value[0]) for value in model.steps(200)] == expected


@pytest.mark.skipif(not hasattr(tf1.layers, "dropout"), reason="gone from TensorFlow 2.16")
@pytest.mark.filterwarnings("ignore:.*tf.layers.dropout.* is deprecated:UserWarning")
def test_layers() -> None:
    def build() -> Any:
        inputs = tf.ones([SIZE, 2])
        by_layer = tf1.layers.dropout(inputs, 0.4, training=True)
        by_keras = tf1.keras.layers.Dropout(0.4)(inputs, training=True)
        noisy = tf1.keras.layers.GaussianNoise(1.0)(inputs, training=True)
        return by_layer, by_keras, noisy

    model = Model(build)
    assert not model.ops.unsupported
    expected = model.steps(4)[3]
    for value, other in zip(Model(build).at(3).step(), expected, strict=True):
        np.testing.assert_array_equal(value, other)
