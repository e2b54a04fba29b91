"""Which records each training batch holds: computed, or drawn from a sampler of the user's."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

from detcore.errors import DataError
from detcore_torch._seeding import preserved_generators, seed_from, seed_generators

__all__ = ["BatchOrder", "Requests", "SamplerOrder"]

# Asking an `IndexSampler` for many batches at a time costs far less than asking one by one.
_BLOCK = 64


class BatchOrder(Protocol):
    """What a loader asks; `detcore.data.IndexSampler` is one."""

    batches_per_epoch: int

    def batches(self, start: int, stop: int) -> Sequence[Any]:
        """Return the record indices of some consecutive batches of this worker."""


class SamplerOrder:
    """The order of a user's batch sampler, which is drawn anew for each epoch.

    Before each draw all generators are seeded from the trial's seed and the epoch, so any epoch's
    order can be had again: after a resume, and on every worker alike. A sampler's own ``generator``
    is seeded too, and ``set_epoch`` is called where there is one.

    Args:
        batch_sampler: Yields lists of record indices; its length is that of an epoch.
        sampler: What it draws records from, or None.
        seed: The trial's seed.
        rank: This worker.
        world_size: Number of workers; each takes every `world_size`-th batch.

    Raises:
        DataError: If it has no batch.
    """

    def __init__(
        self, batch_sampler: Any, sampler: Any, *, seed: int, rank: int, world_size: int
    ) -> None:
        self._batch_sampler = batch_sampler
        self._sampler = sampler
        self._seed = seed
        self._rank = rank
        self._world_size = world_size
        self._latest: tuple[int, list[Any]] | None = None
        self.batches_per_epoch = len(self._draw(0))
        if not self.batches_per_epoch:
            raise DataError(
                f"the sampler {sampler or batch_sampler!r} yields no batch.\n"
                "Give the data at least one batch."
            )

    def batches(self, start: int, stop: int) -> list[Any]:
        """Return the record indices of some consecutive batches of this worker."""
        found = []
        for index in range(start, stop):
            stream = self._rank + index * self._world_size
            epoch, cursor = divmod(stream, self.batches_per_epoch)
            found.append(self._epoch(epoch)[cursor])
        return found

    def _epoch(self, epoch: int) -> list[Any]:
        drawn = self._draw(epoch)
        if len(drawn) != self.batches_per_epoch:
            raise DataError(
                f"the sampler {self._sampler or self._batch_sampler!r} yields {len(drawn)} batches "
                f"in epoch {epoch}, and {self.batches_per_epoch} in epoch 0.\n"
                "Where a batch is after a resume follows from their number, so it must stay.\n"
                "Let the sampler yield the same number of batches in each epoch."
            )
        return drawn

    def _draw(self, epoch: int) -> list[Any]:
        if self._latest is None or self._latest[0] != epoch:
            seed = seed_from(self._seed, epoch)
            with preserved_generators():
                seed_generators(seed)
                for part in (self._sampler, self._batch_sampler):
                    if hasattr(part, "set_epoch"):
                        part.set_epoch(epoch)
                    if getattr(part, "generator", None) is not None:
                        part.generator.manual_seed(seed)
                self._latest = (epoch, list(self._batch_sampler))
        return self._latest[1]


class Requests:
    """What the batches of a stream are asked for with, in order: ``(number, record indices)``.

    A sampler for PyTorch's loader, which may ask long before it delivers.

    Args:
        order: Says which records.
        start: First batch of this worker.
        stop: The batch after the last one; None: no end.
    """

    def __init__(self, order: BatchOrder, start: int, stop: int | None) -> None:
        self._order = order
        self._start = start
        self._stop = stop

    def __iter__(self) -> Iterator[tuple[int, Any]]:
        start = self._start
        while self._stop is None or start < self._stop:
            end = start + _BLOCK if self._stop is None else min(start + _BLOCK, self._stop)
            yield from enumerate(self._order.batches(start, end), start)
            start = end
