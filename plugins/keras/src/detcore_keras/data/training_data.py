"""Create a feed from the result of ``build_training_data_loader``."""

from __future__ import annotations

from typing import Any

from detcore.data import IndexSampler
from detcore.errors import CheckFailedError
from detcore_keras.data.array_feed import ArrayFeed
from detcore_keras.data.batches import as_arrays, list_leaves
from detcore_keras.data.data_settings import DataSettings
from detcore_keras.data.feed import Feed
from detcore_keras.data.sequence_feed import SequenceFeed, as_sequence, make_loader
from detcore_keras.data.source_feed import SourceFeed, check_source
from detcore_keras.frameworks import is_tf_dataset


def make_feed(data: Any, settings: DataSettings, *, with_ledger: bool) -> Feed:
    """Return the feed for training data of any supported kind.

    Args:
        data: Result of the trial.
        settings: How to read it.
        with_ledger: Whether the records of each batch are logged.

    Raises:
        InvalidDataTypeError: If the kind is not supported.
        InvalidExperimentError: If a dataset was not wrapped.
        CheckFailedError: If a batch is larger than the data.
        DataError: If the data is empty.
    """
    if is_tf_dataset(data):
        from detcore_keras.data.dataset_feed import DatasetFeed, check_dataset

        check_dataset(data, settings.wrapped, "training")
        return DatasetFeed(data, with_ledger=with_ledger)
    if check_source(data, "training", num_workers=settings.distributed.size):
        return SourceFeed(data)
    sequence = as_sequence(data)
    if sequence is not None:
        loader = make_loader(data, sequence, settings)
        return SequenceFeed(sequence.sequence, _make_sampler(settings, len(sequence), 1), loader)
    arrays = as_arrays(data, "training")
    num_records, batch_size = len(list_leaves(arrays)[0]), settings.batch_size
    if batch_size > num_records:
        raise CheckFailedError(
            f"a batch of {batch_size} records is larger than the training data, which has "
            f"{num_records}.\n"
            "Lower hyperparameters.global_batch_size, or provide more data."
        )
    return ArrayFeed(arrays, _make_sampler(settings, num_records, batch_size))


def _make_sampler(settings: DataSettings, num_records: int, batch_size: int) -> IndexSampler:
    return IndexSampler(
        num_records,
        batch_size,
        shuffle=settings.options.shuffle,
        seed=settings.seed,
        rank=settings.distributed.rank,
        world_size=settings.distributed.size,
    )
