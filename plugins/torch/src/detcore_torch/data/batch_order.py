"""The records of each training batch: computed, or drawn from a sampler of the user's."""

from __future__ import annotations

import collections
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

from detcore.errors import DataError
from detcore_torch.libraries import torch
from detcore_torch.state.random_generators import LoadingGenerators, seed_from, seed_generators

# An `IndexSampler` computes many batches in one call far faster than one batch per call.
_BLOCK = 256
_MAX_BATCHES = 4_000_000


class BatchOrder(Protocol):
    """The order of a loader's batches; `detcore.data.IndexSampler` is one."""

    batches_per_epoch: int

    def batches(self, start: int, stop: int) -> Sequence[Any]:
        """Return the record indices of consecutive batches of this worker."""


class SamplerOrder:
    """The order of a user's batch sampler, drawn once per epoch.

    Before each draw all generators are seeded from the trial's seed and the epoch, so that the
    order of any epoch can be drawn again: after a resume, and on every worker. A sampler's own
    ``generator`` is seeded too, and its ``set_epoch`` is called if it has one.

    Args:
        batch_sampler: Yields lists of record indices; its length is that of an epoch.
        sampler: The sampler that it draws records from, or None.
        seed: The trial's seed.
        rank: This worker.
        world_size: Number of workers; each takes every `world_size`-th batch.

    Raises:
        DataError: If the sampler yields no batch, or a different order when an epoch is drawn
            again.
    """

    def __init__(
        self, batch_sampler: Any, sampler: Any, *, seed: int, rank: int, world_size: int
    ) -> None:
        self._batch_sampler = batch_sampler
        self._parts = _nested_samplers(sampler, batch_sampler)
        self._name = repr(batch_sampler if sampler is None else sampler)
        self._seed = seed
        self._rank = rank
        self._world_size = world_size
        self._latest = (0, self._draw_epoch(0))
        self.batches_per_epoch = len(self._latest[1])
        if not self.batches_per_epoch:
            raise DataError(
                f"the sampler {self._name} yields no batch.\nGive the data at least one batch."
            )
        if self._draw_epoch(0) != self._latest[1]:
            raise DataError(
                f"the sampler {self._name} yields a different order when it draws epoch 0 again.\n"
                "A resumed run draws the order of its epoch again, and would get other records.\n"
                "Draw from torch, numpy.random, random or an attribute 'generator', which are "
                "seeded for each epoch, or from the number that set_epoch(epoch) receives."
            )

    def batches(self, start: int, stop: int) -> list[list[int]]:
        """Return the record indices of consecutive batches of this worker."""
        batches = []
        for index in range(start, stop):
            stream = self._rank + index * self._world_size
            epoch, cursor = divmod(stream, self.batches_per_epoch)
            batches.append(self._load_epoch(epoch)[cursor])
        return batches

    def _load_epoch(self, epoch: int) -> list[list[int]]:
        if self._latest[0] != epoch:
            self._latest = (epoch, self._draw_epoch(epoch))
        batches = self._latest[1]
        if len(batches) != self.batches_per_epoch:
            raise DataError(
                f"the sampler {self._name} yields {len(batches)} batches in epoch {epoch}, and "
                f"{self.batches_per_epoch} in epoch 0.\n"
                "A resumed run computes its position from the number of batches in an epoch.\n"
                "Yield the same number of batches in each epoch."
            )
        return batches

    def _draw_epoch(self, epoch: int) -> list[list[int]]:
        seed = seed_from(self._seed, epoch)
        with LoadingGenerators():
            seed_generators(seed)
            for part in self._parts:
                if hasattr(part, "set_epoch"):
                    part.set_epoch(epoch)
                if getattr(part, "generator", None) is not None:
                    part.generator.manual_seed(seed)
            batches = list(itertools.islice(self._batch_sampler, _MAX_BATCHES + 1))
        if len(batches) > _MAX_BATCHES:
            raise DataError(
                f"the sampler {self._name} yields more than {_MAX_BATCHES:,} batches in an epoch.\n"
                "The order of a whole epoch is drawn before its first batch, so an epoch must "
                "end.\n"
                "End the sampler after one pass over the data. The loop starts the next pass."
            )
        try:
            return [[int(index) for index in batch] for batch in batches]
        except (TypeError, ValueError) as error:
            raise DataError(
                f"the sampler {self._name} yields record indices that are not integers: {error}.\n"
                "Yield integers from a sampler, and lists of integers from a batch sampler."
            ) from error


def _nested_samplers(*samplers: Any) -> list[Any]:
    """Return samplers and the samplers inside them, as in Accelerate's sharding sampler."""
    samplers_by_id: dict[int, Any] = {}
    pending = list(samplers)
    while pending:
        sampler = pending.pop()
        if sampler is not None and id(sampler) not in samplers_by_id:
            samplers_by_id[id(sampler)] = sampler
            pending += [getattr(sampler, name, None) for name in ("sampler", "batch_sampler")]
    return list(samplers_by_id.values())


class SingleRecords:
    """The records of a sampler, each as a batch of one."""

    def __init__(self, sampler: Any) -> None:
        self.sampler = sampler

    def __iter__(self) -> Iterator[list[Any]]:
        for index in self.sampler:
            yield [index]


class BatchRequests(torch.utils.data.BatchSampler):  # type: ignore[misc]  # no types here
    """Requests ``(seed, record indices)`` for consecutive batches; a sampler for PyTorch's loader.

    PyTorch's loader may request batches long before it delivers them. This class is a
    ``BatchSampler``, so that Accelerate can skip batches without loading them.
    """

    def __init__(self) -> None:
        """Create an empty sampler; see `request_batches`."""

    def request_batches(
        self,
        order: BatchOrder,
        start: int,
        stop: int | None,
        seed_batch: Callable[[int], int],
        records: collections.deque[Any] | None = None,
    ) -> None:
        """Set the batches of the next iteration.

        Args:
            order: The records of each batch.
            start: First batch of this worker.
            stop: Number of the batch after the last batch; None for no end.
            seed_batch: Returns the seed of a batch.
            records: Receives the records of each batch when it is requested.
        """
        self._order, self._start, self._stop = order, start, stop
        self._seed_batch, self._records = seed_batch, records

    def request_epoch(
        self,
        order: BatchOrder,
        seed: int,
        *,
        rank: int,
        epoch: int,
        start: int = 0,
        records: collections.deque[Any] | None = None,
    ) -> None:
        """Set the batches of an epoch from `start` on; see `request_batches`."""
        first = epoch * order.batches_per_epoch

        def seed_batch(number: int) -> int:
            return seed_from(seed, rank, epoch, number - first)

        self.request_batches(
            order, first + start, first + order.batches_per_epoch, seed_batch, records
        )

    def __len__(self) -> int:
        return self._order.batches_per_epoch

    def __iter__(self) -> Iterator[tuple[int, Any]]:
        order, start, stop = self._order, self._start, self._stop
        seed_batch, requested = self._seed_batch, self._records
        while stop is None or start < stop:
            end = start + _BLOCK if stop is None else min(start + _BLOCK, stop)
            for number, records in enumerate(order.batches(start, end), start):
                if requested is not None:
                    requested.append(records)
                yield seed_batch(number), records
            start = end
