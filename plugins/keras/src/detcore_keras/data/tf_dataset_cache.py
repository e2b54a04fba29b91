"""Cache datasets. One trial writes a dataset, and later trials read it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import tensorflow as tf

from detcore.data import CacheKey, DatasetCache, with_key_order
from detcore.errors import DataError, InvalidDataTypeError, describe
from detcore_keras.state.random_generators import preserved_rng


def open_cached_dataset(
    key: CacheKey,
    make_dataset: Callable[[], Any],
    *,
    root: Path | None,
    shuffle_seed: int | None,
    reshuffle: bool,
    shard: tuple[int, int],
    drop_remainder: bool,
) -> Any:
    """Return a cached dataset of records, sharded, and shuffled if requested.

    Args:
        key: Name of the dataset.
        make_dataset: Creates the dataset if the cache does not have it.
        root: Cache directory; None to cache nothing.
        shuffle_seed: Seed of the order; None for the order of writing.
        reshuffle: Whether each epoch has a different order.
        shard: Rank and number of workers.
        drop_remainder: Whether to leave out records so that all workers have equally many.

    Raises:
        InvalidDataTypeError: If the function did not return a ``tf.data.Dataset``.
        DataError: If the dataset has no records, or no end.
    """

    def write_dataset(folder: Path) -> tuple[int, Any]:
        # A trial that finds the dataset in the cache must continue with the same random numbers.
        with preserved_rng():
            dataset = _check_dataset(key, make_dataset())
            dataset.save(str(folder))
        return _count_records(tf.data.Dataset.load(str(folder))), dataset.element_spec

    if root is None:
        dataset = _check_dataset(key, make_dataset())
        num_records = _count_records(dataset)
    else:
        cached = DatasetCache(root).open(key, write_dataset)
        num_records = cached.num_records
        dataset = tf.data.Dataset.load(str(cached.folder))
        # TensorFlow's file does not keep the order of a record's keys.
        spec = with_key_order(dataset.element_spec, cached.keys)
        dataset = tf.data.Dataset.load(str(cached.folder), spec)
        dataset = dataset.apply(tf.data.experimental.assert_cardinality(num_records))
    rank, size = shard
    if size > 1:
        if drop_remainder:
            num_records -= num_records % size
            dataset = dataset.take(num_records)
        dataset = dataset.shard(size, rank)
    if shuffle_seed is None:
        return dataset
    return dataset.shuffle(
        max(1, -(-num_records // size)), seed=shuffle_seed, reshuffle_each_iteration=reshuffle
    )


def _check_dataset(key: CacheKey, dataset: Any) -> Any:
    if not isinstance(dataset, tf.data.Dataset):
        raise InvalidDataTypeError(
            f"the cached dataset function returned {describe(dataset)}, not a tf.data.Dataset."
        )
    if int(dataset.cardinality()) == tf.data.INFINITE_CARDINALITY:
        raise DataError(
            f"the dataset {key.dataset_id!r} has no end, so caching it would fill the disk.\n"
            "Remove repeat() from the decorated function. detcore repeats the dataset."
        )
    return dataset


def _count_records(dataset: Any) -> int:
    count = int(dataset.reduce(tf.constant(0, tf.int64), lambda total, *_: total + 1))
    if count == 0:
        raise DataError("the dataset to cache is empty: it has 0 records.")
    return count
