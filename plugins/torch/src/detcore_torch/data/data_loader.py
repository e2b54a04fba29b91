"""`DataLoader`: data whose batches can each be loaded again from their number alone."""

from __future__ import annotations

import collections
import dataclasses
import logging
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any

from detcore.data import IndexSampler
from detcore.errors import DataError, InvalidDataTypeError, describe
from detcore_torch.data.batch_fetcher import BatchFetcher, raise_failures, return_unchanged
from detcore_torch.data.batch_order import BatchOrder, BatchRequests, SamplerOrder, SingleRecords
from detcore_torch.libraries import torch
from detcore_torch.state.random_generators import seed_from

_logger = logging.getLogger("detcore.torch")

_OPTIONS = (
    "num_workers",
    "pin_memory",
    "timeout",
    "worker_init_fn",
    "multiprocessing_context",
    "prefetch_factor",
    "persistent_workers",
)


@dataclasses.dataclass(frozen=True, slots=True)
class Batch:
    """A batch and the indices of the records in it."""

    data: Any
    records: Sequence[int]


class DataLoader:
    """A description of batches, from which detcore creates a PyTorch loader.

    Accepts the arguments of ``torch.utils.data.DataLoader``. The order follows from the trial's
    seed. A resumed run continues with the next batch, even in the middle of an
    epoch, and reads nothing again. Each of N workers trains on every N-th batch, so give each
    worker all of the data.

    Random numbers that a dataset or ``collate_fn`` draws from ``random``, ``numpy.random`` and
    ``torch`` depend on the trial's seed and the number of the batch alone, whatever
    ``num_workers`` is.

    Args:
        dataset: Has ``__len__`` and ``__getitem__``. An ``IterableDataset`` is rejected, because
            its order cannot be restored.
        batch_size: Records in a batch of one worker: ``context.get_per_slot_batch_size()``.
        shuffle: Whether each epoch has a new order.
        sampler: Yields record indices; drawn once for each epoch, under generators that are seeded
            with the epoch's number.
        batch_sampler: Yields lists of record indices, likewise.
        num_workers: Number of loader processes; 0 to load in the training process.
        collate_fn: Combines a list of records into a batch.
        pin_memory: As PyTorch's.
        drop_last: Leave out the last batch of an epoch if it is smaller.
        timeout: As PyTorch's.
        worker_init_fn: As PyTorch's.
        multiprocessing_context: As PyTorch's.
        generator: Ignored, which the log says.
        prefetch_factor: As PyTorch's.
        persistent_workers: As PyTorch's; workers of training data always stay for all epochs.

    Raises:
        InvalidDataTypeError: If training could not be resumed with the dataset.
        DataError: If arguments contradict each other.
    """

    def __init__(
        self,
        dataset: Any,
        batch_size: int | None = 1,
        shuffle: bool = False,
        sampler: Any = None,
        batch_sampler: Any = None,
        num_workers: int = 0,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        pin_memory: bool = False,
        drop_last: bool = False,
        timeout: float = 0,
        worker_init_fn: Callable[[int], None] | None = None,
        multiprocessing_context: Any = None,
        generator: Any = None,
        *,
        prefetch_factor: int | None = None,
        persistent_workers: bool = False,
    ) -> None:
        _check_dataset(dataset)
        _check_sampling(batch_size, shuffle, sampler, batch_sampler, drop_last)
        if generator is not None:
            _logger.info("the generator of the DataLoader is ignored: the trial's seed is used")
        self.dataset = dataset
        self.batch_size = batch_size
        self.shuffle = shuffle
        self.drop_last = drop_last
        self.sampler = sampler
        self.batch_sampler = batch_sampler
        self.collate_fn = collate_fn or torch.utils.data.default_collate
        self.is_batched = True
        self.options = {
            "num_workers": num_workers,
            "pin_memory": pin_memory,
            "timeout": timeout,
            "worker_init_fn": worker_init_fn,
            "multiprocessing_context": multiprocessing_context,
            "prefetch_factor": prefetch_factor,
            "persistent_workers": persistent_workers,
        }

    def __len__(self) -> int:
        """Return the number of batches in an epoch, over all workers."""
        if self.batch_sampler is not None:
            return len(self.batch_sampler)
        num_records = len(self.dataset if self.sampler is None else self.sampler)
        size = int(self.batch_size or 1)
        return num_records // size if self.drop_last else -(-num_records // size)

    def order(self, *, seed: int, rank: int = 0, world_size: int = 1) -> BatchOrder:
        """Return the records of each batch.

        Args:
            seed: Seed of the order; the same on all workers.
            rank: Rank of the worker, whose first batch has this number.
            world_size: Number of workers.
        """
        if self.sampler is None and self.batch_sampler is None:
            num_records, size = len(self.dataset), int(self.batch_size or 0)
            return IndexSampler(
                num_records,
                size if self.drop_last else min(size, max(1, num_records)),
                shuffle=self.shuffle,
                seed=seed,
                rank=rank,
                world_size=world_size,
                drop_last=self.drop_last,
            )
        batch_sampler = self.batch_sampler
        if batch_sampler is None:
            batch_sampler = torch.utils.data.BatchSampler(
                self.sampler, int(self.batch_size or 0), self.drop_last
            )
        sampler = self.sampler
        if sampler is None:
            sampler = getattr(batch_sampler, "sampler", None)
        return SamplerOrder(batch_sampler, sampler, seed=seed, rank=rank, world_size=world_size)

    def fetching_loader(self, requests: BatchRequests) -> Any:
        """Return a PyTorch loader that loads batches from requests ``(seed, records)``."""
        fetcher = BatchFetcher(
            self.dataset,
            self.collate_fn,
            is_batched=self.is_batched,
            worker_init_fn=self.options["worker_init_fn"],
        )
        return torch.utils.data.DataLoader(
            fetcher,
            batch_size=None,
            sampler=requests,
            collate_fn=return_unchanged,
            # PyTorch draws its workers' seeds from this generator. By default it would draw them
            # from the generator of training.
            generator=torch.Generator(),
            **{**self.options, "worker_init_fn": fetcher.init_worker},
        )


class BatchStream:
    """Batches of one worker from any number on; loading starts with the first `take`.

    Args:
        loader: Description of the batches.
        order: The records of each batch.
        seed: The trial's seed.
        rank: This worker.
        world_size: Number of workers.
        stop: Number of the batch after the last batch; None for no end.

    Attributes:
        position: Number of the batch that the next `take_batch` returns.
    """

    def __init__(
        self,
        loader: DataLoader,
        order: BatchOrder,
        *,
        seed: int,
        rank: int = 0,
        world_size: int = 1,
        stop: int | None = None,
    ) -> None:
        self._loader = loader
        self._order = order
        self._seed = seed
        self._rank = rank
        self._world_size = world_size
        self.position = 0
        self._stop = stop
        self._batches: Generator[Batch, None, None] | None = None

    def seek(self, start: int) -> None:
        """Continue at a batch, without reading the batches before it."""
        self.close()
        self.position = start

    def take_batch(self) -> Batch:
        """Return the next batch."""
        if self._batches is None:
            self._batches = self._load_batches()
        batch = next(self._batches)
        self.position += 1
        return batch

    def __iter__(self) -> Iterator[Batch]:
        """Return an iterator over the batches, from the first."""
        return self._load_batches()

    def close(self) -> None:
        """End the processes that load for `take`."""
        if self._batches is not None:
            self._batches.close()
        self._batches = None

    def _load_batches(self) -> Generator[Batch, None, None]:
        requests, records = BatchRequests(), collections.deque[Sequence[int]]()
        requests.request_batches(self._order, self.position, self._stop, self._seed_batch, records)
        for data in raise_failures(iter(self._loader.fetching_loader(requests))):
            yield Batch(data, records.popleft())

    def _seed_batch(self, number: int) -> int:
        return seed_from(self._seed, self._rank + number * self._world_size)


def check_trial_loader(loader: Any, method: str) -> DataLoader:
    """Return a description of the loader that a trial's method returned.

    Raises:
        InvalidDataTypeError: If it is not a loader, or training could not be resumed with it.
        DataError: If it divides the data among workers, which detcore does.
    """
    if isinstance(loader, torch.utils.data.DataLoader):
        loader = describe_loader(loader)
    if not isinstance(loader, DataLoader):
        raise InvalidDataTypeError(
            f"{method} returned {describe(loader)}.\n"
            "Return a torch.utils.data.DataLoader, or a detcore_torch.DataLoader."
        )
    for sampler in (loader.sampler, getattr(loader.batch_sampler, "sampler", None)):
        if isinstance(sampler, torch.utils.data.DistributedSampler) and sampler.num_replicas > 1:
            raise DataError(
                f"{method} returned a loader with a DistributedSampler, which selects 1 of "
                f"{sampler.num_replicas} parts of the data. detcore would divide that part again "
                "among the workers.\n"
                "Remove the sampler. shuffle=True shuffles all of the data."
            )
    return loader


def describe_loader(loader: Any) -> DataLoader:
    """Return a description of the batches of a PyTorch loader.

    Shuffled and sequential orders are computed. Any other sampler is called for the order.

    Raises:
        InvalidDataTypeError: If the batches are not those of the loader's sampler and dataset.
        DataError: If the batches would come in the order in which workers finish.
    """
    check_loader(loader)
    batch_sampler, sampler = loader.batch_sampler, loader.sampler
    if batch_sampler is None:  # each record is a batch
        description = DataLoader(loader.dataset, None, batch_sampler=SingleRecords(sampler))
        description.is_batched = False
    elif (
        type(batch_sampler) is not torch.utils.data.BatchSampler
        or batch_sampler.sampler is not sampler
    ):
        description = DataLoader(loader.dataset, None, batch_sampler=batch_sampler)
    else:
        drops, size = batch_sampler.drop_last, batch_sampler.batch_size
        kind = _computed_order(sampler, loader.dataset)
        if kind is None:
            description = DataLoader(loader.dataset, size, sampler=sampler, drop_last=drops)
        else:
            description = DataLoader(
                loader.dataset, size, shuffle=kind == "shuffled", drop_last=drops
            )
    description.collate_fn = loader.collate_fn
    description.options = list_options(loader)
    return description


def _computed_order(sampler: Any, dataset: Any) -> str | None:
    """Return "shuffled" or "sequential" if a sampler yields each record once, or None."""
    source: Any = getattr(sampler, "data_source", None)
    if source is not dataset:
        return None
    if type(sampler) is torch.utils.data.SequentialSampler:
        return "sequential"
    is_shuffled = type(sampler) is torch.utils.data.RandomSampler and not sampler.replacement
    return "shuffled" if is_shuffled and sampler.num_samples == len(source) else None


def list_options(loader: Any) -> dict[str, object]:
    """Return the arguments of a PyTorch loader that control how batches are loaded, not which."""
    return {name: getattr(loader, name) for name in _OPTIONS}


def check_loader(loader: Any) -> None:
    """Check that a loader yields the batches of its sampler and its dataset, in their order.

    Raises:
        InvalidDataTypeError: If its class iterates in an unknown way.
        DataError: If the batches would come in the order in which workers finish.
    """
    kind = type(loader)
    is_known = kind.__iter__ is torch.utils.data.DataLoader.__iter__
    if not is_known and not kind.__module__.startswith("torchdata.stateful_dataloader."):
        raise InvalidDataTypeError(
            f"the loader is {describe(loader)}, a class that iterates in a way that detcore does "
            "not know.\n"
            "Its batches may not be those of its sampler and its dataset, so a resumed run could "
            "not restore its position.\n"
            "Use torch.utils.data.DataLoader, or wrap the loader that yields the batches."
        )
    if not getattr(loader, "in_order", True):
        raise DataError(
            "the loader has in_order=False, so its batches come in the order in which its workers "
            "finish.\n"
            "That order differs from run to run, and a resumed run would use some records twice "
            "and others never.\n"
            "Remove in_order."
        )


def _check_dataset(dataset: Any) -> None:
    if isinstance(dataset, torch.utils.data.IterableDataset):
        raise InvalidDataTypeError(
            f"the dataset is {describe(dataset)}, an IterableDataset.\n"
            "Its records have no indices, so a resumed run could not restore its position.\n"
            "Use a dataset with __len__ and __getitem__."
        )
    if not (hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")):
        raise InvalidDataTypeError(
            f"the dataset is {describe(dataset)}, which has no __len__ and __getitem__.\n"
            "Use a torch.utils.data.Dataset, or a list of records."
        )


def _check_sampling(
    batch_size: int | None, shuffle: bool, sampler: Any, batch_sampler: Any, drop_last: bool
) -> None:
    if batch_sampler is not None:
        if batch_size not in (1, None) or shuffle or sampler is not None or drop_last:
            raise DataError(
                "batch_sampler determines the records of each batch, so batch_size, shuffle, "
                "sampler and drop_last cannot be used with it.\nRemove them."
            )
        return
    if sampler is not None and shuffle:
        raise DataError(
            "sampler determines the order of records, and shuffle=True contradicts it.\n"
            "Remove one of them."
        )
    if batch_size is None or batch_size < 1:
        raise DataError(
            f"batch_size is {batch_size!r}; it must be at least 1.\n"
            "Use context.get_per_slot_batch_size()."
        )
