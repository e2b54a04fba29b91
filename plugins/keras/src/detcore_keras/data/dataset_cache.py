"""Cache datasets, written once and read again by every later trial."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

from detcore.data import CacheKey, DatasetCache, with_key_order
from detcore.errors import DataError, InvalidDataTypeError, describe
from detcore_keras.frameworks import tf
from detcore_keras.state.random_state import preserved_rng


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CachedDataset:
    """A dataset of records that is made at most once.

    Attributes:
        key: Its name.
        make_dataset: Makes it, if it does not exist yet.
        root: Cache folder; None to keep nothing.
        shuffle_seed: Seed of the order; None for the order of writing.
        reshuffle: Whether each epoch has a different order.
        shard: Rank and number of workers.
        drop_remainder: Whether to leave out records so that all workers have equally many.
    """

    key: CacheKey
    make_dataset: Callable[[], Any]
    root: Path | None
    shuffle_seed: int | None
    reshuffle: bool
    shard: tuple[int, int]
    drop_remainder: bool

    def open(self) -> Any:
        """Return the dataset of records, sharded, and shuffled if requested.

        Raises:
            InvalidDataTypeError: If the function did not return a ``tf.data.Dataset``.
            DataError: If it has no records, or no end.
        """
        dataset, num_records = self._records()
        rank, size = self.shard
        if size > 1:
            if self.drop_remainder:
                num_records -= num_records % size
                dataset = dataset.take(num_records)
            dataset = dataset.shard(size, rank)
        if self.shuffle_seed is not None:
            dataset = dataset.shuffle(
                max(1, -(-num_records // size)),
                seed=self.shuffle_seed,
                reshuffle_each_iteration=self.reshuffle,
            )
        return dataset

    def _records(self) -> tuple[Any, int]:
        if self.root is None:
            dataset = self._made()
            return dataset, _count(dataset)
        cached = DatasetCache(self.root).open(self.key, self._write)
        dataset = tf.data.Dataset.load(str(cached.folder))
        # TensorFlow's file loses the order of a record's keys, differently in each process.
        spec = with_key_order(dataset.element_spec, cached.keys)
        dataset = tf.data.Dataset.load(str(cached.folder), spec)
        return (
            dataset.apply(tf.data.experimental.assert_cardinality(cached.num_records)),
            cached.num_records,
        )

    def _made(self) -> Any:
        dataset = self.make_dataset()
        if not isinstance(dataset, tf.data.Dataset):
            raise InvalidDataTypeError(
                f"the cached dataset function returned {describe(dataset)}, not a tf.data.Dataset."
            )
        if int(dataset.cardinality()) == tf.data.INFINITE_CARDINALITY:
            raise DataError(
                f"the dataset {self.key.dataset_id!r} has no end, so caching it would fill the "
                "disk.\nLeave out repeat() in the decorated function: detcore repeats it."
            )
        return dataset

    def _write(self, folder: Path) -> tuple[int, Any]:
        # A trial that finds the dataset in the cache must continue with the same random numbers.
        with preserved_rng():
            dataset = self._made()
            dataset.save(str(folder))
        return _count(tf.data.Dataset.load(str(folder))), dataset.element_spec


def _count(dataset: Any) -> int:
    count = int(dataset.reduce(tf.constant(0, tf.int64), lambda total, *_: total + 1))
    if count == 0:
        raise DataError("the dataset to cache is empty: it has 0 records.")
    return count
