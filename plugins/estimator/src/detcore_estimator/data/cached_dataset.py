"""Cache datasets in graph mode. One trial writes a dataset, and later trials read it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

from detcore.data import CacheKey, DatasetCache, with_key_order
from detcore.errors import ContextStateError, DataError, InvalidDataTypeError, describe
from detcore.trial import preserve_random_state
from detcore_estimator.tensorflow_versions import tf, tf1


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CachedDataset:
    """A cached dataset of records.

    Attributes:
        key: Name of the dataset.
        make_dataset: Creates the dataset if the cache does not have it.
        root: Cache directory; None to cache nothing.
        seed: Seed of the dataset's random operations, and of the order.
        shuffle: Whether the records are read in an order derived from the seed.
        reshuffle: Whether each epoch has a different order.
        shard: Rank and number of workers.
        drop_remainder: Whether to leave out records so that all workers have equally many.
    """

    key: CacheKey
    make_dataset: Callable[[], Any]
    root: Path | None
    seed: int
    shuffle: bool
    reshuffle: bool
    shard: tuple[int, int]
    drop_remainder: bool

    def open(self, session_config: Any) -> Any:
        """Return the dataset of records in the current graph, sharded, and shuffled if requested.

        Args:
            session_config: Configuration of the session that writes the records; None if not known
                yet.

        Raises:
            InvalidDataTypeError: If the function did not return a ``tf.data.Dataset``.
            DataError: If the dataset has no records, or no end.
            ContextStateError: If the dataset must be written before the session configuration is
                known.
        """
        dataset, num_records = self._open_records(session_config)
        rank, size = self.shard
        if num_records is None and (self.shuffle or size > 1):
            num_records = _count_records(dataset)
        if size > 1:
            if self.drop_remainder:
                num_records -= num_records % size
                dataset = dataset.take(num_records)
            dataset = dataset.shard(size, rank)
        if self.shuffle:
            dataset = dataset.shuffle(
                _at_least_one(-(-num_records // size)),
                seed=self.seed,
                reshuffle_each_iteration=self.reshuffle,
            )
        return dataset

    def _open_records(self, session_config: Any) -> tuple[Any, Any]:
        """Return all records and their number, or None for the number without a cache."""
        if self.root is None:
            return self._create_dataset(), None

        def write_dataset(folder: Path) -> tuple[int, Any]:
            return self._write_dataset(folder, session_config)

        cached = DatasetCache(self.root).open(self.key, write_dataset)
        dataset = tf.data.Dataset.load(str(cached.folder))
        # TensorFlow's file does not keep the order of a record's keys.
        spec = with_key_order(dataset.element_spec, cached.keys)
        dataset = tf.data.Dataset.load(str(cached.folder), spec)
        dataset = dataset.apply(tf.data.experimental.assert_cardinality(cached.num_records))
        return dataset, cached.num_records

    def _create_dataset(self) -> Any:
        dataset = self.make_dataset()
        if not isinstance(dataset, tf.data.Dataset):
            raise InvalidDataTypeError(
                f"the cached dataset function returned {describe(dataset)}, not a tf.data.Dataset."
            )
        return dataset

    def _write_dataset(self, folder: Path, session_config: Any) -> tuple[int, Any]:
        """Write the dataset in a separate graph and session."""
        if session_config is None:
            raise ContextStateError(
                f"the cached dataset {self.key.dataset_id!r} was requested before training is set "
                "up.\nWriting it to the cache needs a session, but the session configuration is "
                "not known yet.\nCall the decorated function inside input_fn."
            )
        # A trial that finds the dataset in the cache must continue with the same random numbers.
        with (
            preserve_random_state(),
            tf.Graph().as_default(),
            tf.device("/CPU:0"),
            tf1.Session(config=session_config) as session,
        ):
            tf1.set_random_seed(self.seed)
            dataset = self._create_dataset()
            cardinality = dataset.cardinality()
            session.run(
                [
                    tf1.global_variables_initializer(),
                    tf1.local_variables_initializer(),
                    tf1.tables_initializer(),
                ]
            )
            if session.run(cardinality) == tf.data.INFINITE_CARDINALITY:
                raise DataError(
                    f"the dataset {self.key.dataset_id!r} has no end, so caching it would fill the "
                    "disk.\nRemove repeat() from the decorated function. detcore repeats it."
                )
            session.run(dataset.save(str(folder)))
            count = _count_records(tf.data.Dataset.load(str(folder)))
            return int(session.run(count)), dataset.element_spec


def _count_records(dataset: Any) -> Any:
    """Return the number of records, as a tensor."""
    return dataset.reduce(tf.constant(0, tf.int64), lambda total, *_: total + 1)


def _at_least_one(number: Any) -> Any:
    return max(1, number) if isinstance(number, int) else tf.maximum(number, 1)
