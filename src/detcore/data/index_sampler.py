"""Compute the records of any batch, for any rank."""

from __future__ import annotations

import itertools

import numpy as np

from detcore.contract.errors import DataError, ShardError
from detcore.data.shuffled_order import Indices, ShuffledOrder


def shard_range(num_records: int, *, rank: int, world_size: int) -> range:
    """Return the records that one worker reads.

    The first ``num_records % world_size`` ranks read one more record than the others.

    Args:
        num_records: Number of records in the whole data set, not per worker; >= 0.
        rank: Index of this worker, ``0 <= rank < world_size``.
        world_size: Number of workers on all nodes; >= 1.

    Returns:
        Record indices, end exclusive. The ranges of all ranks are disjoint and cover the data set.

    Raises:
        ShardError: If ``rank`` is outside ``[0, world_size)``.

    Examples:
        >>> [shard_range(10, rank=rank, world_size=3) for rank in range(3)]
        [range(0, 4), range(4, 7), range(7, 10)]
    """
    _check_rank(rank, world_size)
    if num_records < 0:
        raise ShardError(f"a data set of {num_records} records cannot be divided")
    size, extra = divmod(num_records, world_size)
    start = rank * size + min(rank, extra)
    return range(start, start + size + (rank < extra))


class IndexSampler:
    """Computes the records of each batch of one worker, for any batch directly.

    Each epoch is divided into batches of `batch_size` records. The last batch is smaller, or left
    out with `drop_last`. The batches of all epochs form a stream: rank r reads the stream positions
    r, r + world_size, ... across all epochs. Nothing is replayed to reach a batch. Results never
    change, and instances may be shared between threads.

    Args:
        num_records: Number of records in the data set; >= 1.
        batch_size: Number of records in a batch of one worker; >= 1.
        shuffle: Whether each epoch has a different order; otherwise the order is 0, 1, 2, ...
        seed: Seed of the order; the same on every rank.
        rank: Index of this worker, ``0 <= rank < world_size``.
        world_size: Number of workers.
        drop_last: Whether to leave out the last batch of an epoch if it is smaller.

    Attributes:
        num_records: Number of records in the data set.
        batch_size: Number of records in a batch.
        batches_per_epoch: Number of batches in one epoch, over all workers.

    Raises:
        DataError: If the data set is empty or smaller than one batch.
        ShardError: If `rank` is outside ``[0, world_size)``.

    Example:
        >>> IndexSampler(5, 2, shuffle=False, seed=0).batch(2)
        array([4])
    """

    def __init__(
        self,
        num_records: int,
        batch_size: int,
        *,
        shuffle: bool,
        seed: int,
        rank: int = 0,
        world_size: int = 1,
        drop_last: bool = False,
    ) -> None:
        _check_rank(rank, world_size)
        _check_sizes(num_records, batch_size)
        self.num_records = num_records
        self.batch_size = batch_size
        self.shuffle = shuffle
        self.seed = seed
        self.rank = rank
        self.world_size = world_size
        self.drop_last = drop_last
        num_full, num_left = divmod(num_records, batch_size)
        self.batches_per_epoch = num_full + (num_left > 0 and not drop_last)
        self._latest: ShuffledOrder | None = None

    @property
    def left_over(self) -> int:
        """Number of records that each epoch leaves out because of `drop_last`."""
        return self.num_records % self.batch_size if self.drop_last else 0

    def epoch(self, batch_index: int) -> int:
        """Return the epoch of a batch of this worker, from 0."""
        return (self.rank + batch_index * self.world_size) // self.batches_per_epoch

    def batch(self, batch_index: int) -> Indices:
        """Return the record indices of one batch of this worker, ``(records,), int64``.

        Args:
            batch_index: Index of the batch among this worker's batches since the start of training;
                >= 0.
        """
        return self.batches(batch_index, batch_index + 1)[0]

    def batches(self, start: int, stop: int) -> list[Indices]:
        """Return the record indices of consecutive batches of this worker.

        One call for many batches is much faster than one call per batch.

        Args:
            start: First batch, counted from the start of training; >= 0.
            stop: End of the range of batches, exclusive.
        """
        records, ends, _ = self.joined_batches(start, stop)
        bounds = [0, *ends.tolist()]
        return [records[begin:end] for begin, end in itertools.pairwise(bounds)]

    def joined_batches(self, start: int, stop: int) -> tuple[Indices, Indices, Indices]:
        """Return the records of consecutive batches of this worker in one array.

        Args:
            start: First batch, counted from the start of training; >= 0.
            stop: End of the range of batches, exclusive.

        Returns:
            The record indices, ``(records,), int64``; then the end of each batch within them and
            the epoch of each batch, both ``(batches,), int64``.
        """
        if start < 0:
            raise DataError(f"batch {start} is negative; batches count from 0")
        stream = self.rank + np.arange(start, stop, dtype=np.int64) * self.world_size
        epochs, cursors = np.divmod(stream, self.batches_per_epoch)
        firsts = cursors * self.batch_size
        ends = np.cumsum(np.minimum(self.num_records - firsts, self.batch_size))
        parts = [
            self._epoch_records(int(epoch), firsts[epochs == epoch]) for epoch in np.unique(epochs)
        ]
        return np.concatenate([firsts[:0], *parts]), ends, epochs

    def _epoch_records(self, epoch: int, firsts: Indices) -> Indices:
        """Return the records of batches of an epoch, given the first position of each batch."""
        positions = (firsts[:, None] + np.arange(self.batch_size)).ravel()
        inside = positions[positions < self.num_records]
        return self._get_order(epoch).take(inside) if self.shuffle else inside

    def _get_order(self, epoch: int) -> ShuffledOrder:
        latest = self._latest  # read once, because another thread may replace it
        if latest is None or latest.epoch != epoch:
            latest = self._latest = ShuffledOrder(self.num_records, self.seed, epoch)
        return latest


def _check_rank(rank: int, world_size: int) -> None:
    if world_size < 1 or not 0 <= rank < world_size:
        raise ShardError(
            f"rank {rank} is not one of {world_size} workers; ranks count from 0 to world_size - 1"
        )


def _check_sizes(num_records: int, batch_size: int) -> None:
    if num_records < 1:
        raise DataError(
            f"the data set has {num_records} records.\n"
            "A batch needs at least one record.\n"
            "Pass training data with at least one record."
        )
    if batch_size < 1:
        raise DataError(f"a batch of {batch_size} records is impossible; the minimum is 1")
    if batch_size > num_records:
        raise DataError(
            f"a batch of {batch_size} records is larger than the data set of {num_records}.\n"
            "Not even one batch could be filled.\n"
            "Lower hyperparameters.global_batch_size, or use more data."
        )
