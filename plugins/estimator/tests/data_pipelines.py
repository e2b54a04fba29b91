"""Pipelines of many kinds, and readings of them that can be saved and restored.

As a program, this module saves or restores in a separate process; see ``main``.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from detcore_estimator.data.graph_feed import GraphFeed
from detcore_estimator.tensorflow_versions import tf, tf1

SEED = 11
_X = np.arange(20, dtype=np.float32).reshape(10, 2)
_PAIRS = ({"x": _X, "name": np.array([f"r{i}" for i in range(10)])}, _X[:, 1])


class _Stateful:
    """A generator function with different records in each call."""

    def __init__(self) -> None:
        self._calls = 0

    def __call__(self) -> Any:
        self._calls += 1
        yield from range(10 * self._calls, 10 * self._calls + 5)


def from_generator(generator: Any) -> Any:
    return tf.data.Dataset.from_generator(generator, output_signature=tf.TensorSpec([], tf.int64))


def _with_table(dataset: Any) -> Any:
    keys = tf.constant([0, 1, 2, 3], tf.int64)
    content = tf.lookup.KeyValueTensorInitializer(keys, keys + 10)
    return dataset.map(tf.lookup.StaticHashTable(content, -1).lookup)


def _noisy(dataset: Any) -> Any:
    return dataset.map(lambda x: tf.cast(x, tf.float32) + tf.random.uniform([], seed=5))


def _shuffled(size: int) -> Any:
    return tf.data.Dataset.range(size).shuffle(size)


def _range(size: int) -> Any:
    return tf.data.Dataset.range(size)


def _sliced(tensors: Any) -> Any:
    return tf.data.Dataset.from_tensor_slices(tensors)


def _captured(source: Any, *, size: int = 5) -> Any:
    """Return a dataset whose function reads a shuffled dataset again for each record."""
    shuffled = _shuffled(size)
    return source.flat_map(lambda x: shuffled.map(lambda y: 9 * x + y))


def _elements(size: int) -> Any:
    """Return the records of a shuffled dataset that is itself an element."""
    return tf.data.Dataset.from_tensors(_shuffled(size)).repeat(3).flat_map(lambda part: part)


# Maps names to a pipeline and the number of batches to compare.
PIPELINES: dict[str, tuple[Callable[[], Any], int]] = {
    "shuffle": (lambda: _shuffled(10).batch(4), 11),
    "pairs": (lambda: _sliced(_PAIRS).shuffle(10).batch(4), 8),
    "drop remainder": (lambda: _shuffled(10).batch(4, drop_remainder=True), 9),
    "shuffle repeat batch": (lambda: _shuffled(10).repeat().batch(4), 11),
    "shuffle batch repeat": (lambda: _shuffled(10).batch(4).repeat().prefetch(1), 11),
    "repeat(3)": (lambda: _shuffled(5).repeat(3).batch(4), 11),
    "shuffled twice": (lambda: _range(8).shuffle(3).shuffle(8).batch(3), 10),
    "shuffled twice, repeated": (lambda: _range(8).shuffle(3).shuffle(4).repeat().batch(3), 9),
    "many shuffled twice": (lambda: _shuffled(200).shuffle(20).batch(5).prefetch(1), 90),
    "concatenated": (lambda: _shuffled(4).concatenate(_shuffled(5)).batch(3), 9),
    "cache, shuffle": (lambda: _range(10).cache().shuffle(10).batch(4), 11),
    "shuffle, cache": (lambda: _shuffled(8).cache().batch(4), 8),
    "random map": (lambda: _noisy(_shuffled(6)).batch(4), 9),
    "random map, cache": (lambda: _noisy(_range(6)).cache().shuffle(6).batch(4), 9),
    "generator": (lambda: from_generator(lambda: iter(range(7))).shuffle(7).batch(3), 10),
    "stateful generator": (lambda: from_generator(_Stateful()).shuffle(7).batch(3), 9),
    "filter": (lambda: _shuffled(12).filter(lambda x: tf.not_equal(x % 3, 0)).batch(3), 11),
    "table": (lambda: _with_table(_shuffled(6)).batch(4), 7),
    "files": (
        lambda: (
            _shuffled(4)
            .interleave(lambda x: _range(3).map(lambda y: 9 * x + y), 2, num_parallel_calls=2)
            .shuffle(5)
            .batch(5)
        ),
        9,
    ),
    "shuffled in a function": (
        lambda: _shuffled(3).flat_map(lambda x: _shuffled(4).map(lambda y: 9 * x + y)).batch(5),
        8,
    ),
    "captured shuffle": (lambda: _captured(_range(3)).batch(4), 15),
    "captured shuffle, shuffled": (lambda: _captured(_shuffled(3)).batch(4), 15),
    "large captured shuffle": (lambda: _captured(_range(2), size=100).batch(5), 90),
    "shuffle as an element": (lambda: _elements(5).batch(4), 15),
    "numpy function": (
        lambda: _shuffled(6).map(lambda x: tf.numpy_function(np.negative, [x], tf.int64)).batch(4),
        7,
    ),
    "strings": (lambda: _sliced(["a", "bb", "c"]).shuffle(3).batch(2), 7),
    "sparse": (lambda: _sliced(tf.sparse.from_dense(np.eye(3))).shuffle(3).batch(2), 7),
}


class Reading:
    """A new graph and session that read a pipeline through a `GraphFeed`."""

    def __init__(self, make: Callable[[], Any], *, with_ledger: bool = False) -> None:
        with tf.Graph().as_default() as graph:
            tf1.set_random_seed(SEED)
            self.feed = GraphFeed(make(), with_ledger=with_ledger)
            element = (self.feed.features, self.feed.labels)
            flat = tf.nest.flatten(element, expand_composites=True)
            self.batch = [part for part in flat if part is not None]
            tables = tf1.tables_initializer()
        self.session = tf1.Session(graph=graph)
        self.session.run(tables)

    def begin(self) -> Reading:
        self.feed.begin(self.session)
        return self

    def next(self, tensors: Any) -> Any:
        """Return the values of tensors in the next batch."""
        assert self.feed.ready(1) == 1
        try:
            values = self.session.run(tensors)
        except tf.errors.OutOfRangeError:
            self.feed.ended()
            values = self.session.run(tensors)
        self.feed.advance(1)
        return values

    def read(self, count: int) -> list[Any]:
        return [[as_plain(value) for value in self.next(self.batch)] for _ in range(count)]

    def save(self, directory: Path) -> dict[str, Any]:
        directory.mkdir(parents=True)
        state: dict[str, Any] = json.loads(json.dumps(self.feed.save(directory)))
        return state

    def restore(self, directory: Path, state: dict[str, Any]) -> Reading:
        self.begin().feed.restore(directory, state)
        return self

    def __enter__(self) -> Reading:
        return self

    def __exit__(self, *_: object) -> None:
        self.session.close()


def as_plain(value: Any) -> Any:
    """Return an array as values that JSON can represent."""
    if value.dtype.kind in "OS":
        return [text.decode() for text in value.ravel()]
    return value.tolist()


def main(action: str, folder: str, *names: str) -> None:
    """Save at several positions, or restore and continue reading, in V1 behaviour.

    Args:
        action: "save" or "restore".
        folder: Directory of the checkpoints and of the read batches.
        names: Names of the pipelines.
    """
    tf1.disable_v2_behavior()
    tf1.enable_resource_variables()
    batches = {}
    for name in names:
        make, count = PIPELINES[name]
        for position in (2, 3, 5):
            place = Path(folder) / f"{name} {position}"
            state = place.with_suffix(".json")
            with Reading(make) as reading:
                if action == "save":
                    reading.begin().read(position)
                    state.write_text(json.dumps(reading.save(place)))
                else:
                    reading.restore(place, json.loads(state.read_text()))
                batches[place.name] = reading.read(count)
    (Path(folder) / f"{action}.json").write_text(json.dumps(batches))


if __name__ == "__main__":
    main(*sys.argv[1:])
