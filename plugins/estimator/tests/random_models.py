"""Graphs with random operations, and a program that prints their numbers."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import numpy as np

from detcore_estimator.graph.random_ops import make_random_ops_resumable
from detcore_estimator.tensorflow_versions import tf, tf1

SEED = 3
SIZE = 20000


def _dropout_if(is_training: bool) -> Any:
    condition = tf1.placeholder_with_default(is_training, [])
    ones = tf.ones([SIZE])
    return tf1.cond(condition, lambda: tf.nn.dropout(ones, 0.3), lambda: tf.zeros([SIZE]))


# Maps names to a function, and the mean and variance of its numbers.
DRAWS: dict[str, tuple[Callable[[], Any], float, float]] = {
    "uniform": (lambda: tf.random.uniform([SIZE], -1.0, 3.0), 1.0, 16 / 12),
    "half": (lambda: tf.random.uniform([SIZE], dtype=tf.float16), 0.5, 1 / 12),
    "double": (lambda: tf.random.uniform([SIZE], dtype=tf.float64), 0.5, 1 / 12),
    "int": (lambda: tf.random.uniform([SIZE], 2, 9, dtype=tf.int32), 5.0, 4.0),
    "long": (lambda: tf.random.uniform([SIZE], 2, 9, dtype=tf.int64), 5.0, 4.0),
    "normal": (lambda: tf.random.normal([SIZE], 1.0, 2.0), 1.0, 4.0),
    "truncated": (lambda: tf.random.truncated_normal([SIZE]), 0.0, 0.7737),
    "gamma": (lambda: tf.random.gamma([SIZE // 2], [3.0, 3.0]), 3.0, 3.0),
    "poisson": (lambda: tf.random.poisson([SIZE // 2], [3.0, 3.0]), 3.0, 3.0),
    "categorical": (
        lambda: tf.random.categorical(tf.math.log([[0.1, 0.2, 0.7]]), SIZE)[0],
        1.6,
        0.44,
    ),
    "shuffle": (lambda: tf.random.shuffle(tf.range(SIZE))[: SIZE // 2], SIZE / 2, SIZE**2 / 12),
    "dropout": (lambda: tf.nn.dropout(tf.ones([SIZE]), 0.3), 1.0, 0.3 / 0.7),
}


class Model:
    """A session with a graph whose random operations are rewired.

    Args:
        build: Function that returns the tensor of a step.
        rewire: Whether to rewire the operations.
    """

    def __init__(self, build: Callable[[], Any], *, rewire: bool = True, offset: int = 0) -> None:
        self.ops: Any = None
        with tf.Graph().as_default() as self.graph:
            tf1.set_random_seed(SEED)
            self.fetched = tf.nest.map_structure(tf.identity, build())
            if rewire:
                self.ops = make_random_ops_resumable(self.graph, [self.fetched], seed_offset=offset)
            variables = tf1.global_variables_initializer(), tf1.local_variables_initializer()
        self.graph.finalize()
        self.session = tf1.Session(graph=self.graph)
        self.session.run(variables)

    def step(self) -> Any:
        increment = self.ops.increment if self.ops else []
        return self.session.run([self.fetched, increment])[0]

    def steps(self, count: int) -> list[Any]:
        return [self.step() for _ in range(count)]

    def at(self, step: int) -> Model:
        self.ops.set_counter(self.session, step)
        return self


def digest(values: list[Any]) -> str:
    return hashlib.sha256(b"".join(np.asarray(value).tobytes() for value in values)).hexdigest()


def main() -> None:
    """Print the numbers of each operation at step 3, and try ``tf.cond``, in V1 behaviour."""
    tf1.disable_v2_behavior()
    tf1.enable_resource_variables()
    for name, (build, _, _) in DRAWS.items():
        print(name, digest(Model(build).at(3).steps(2)))
    model = Model(lambda: _dropout_if(True))
    assert not model.ops.unsupported
    first = model.steps(4)
    assert digest(model.at(2).steps(2)) == digest(first[2:])
    assert digest(first[:2]) != digest(first[2:])
    assert not Model(lambda: _dropout_if(False)).step().any()


if __name__ == "__main__":
    main()
