"""`resumable`: a PyTorch loader that saves its position and continues from it."""

from __future__ import annotations

import collections
import copy
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

import numpy as np

from detcore.errors import DataError, InvalidDataTypeError, describe
from detcore_torch.data.batch_fetcher import raise_failures
from detcore_torch.data.batch_order import BatchRequests
from detcore_torch.data.data_loader import DataLoader, describe_loader
from detcore_torch.data.iterable_stream import StreamFeed
from detcore_torch.data.iterator_source import IteratorSource
from detcore_torch.data.webdataset_stream import ShardStream, is_webdataset
from detcore_torch.libraries import import_supported, torch
from detcore_torch.state.random_generators import seed_from

_VERSION = 1


def resumable(
    loader: Any,
    *,
    seed: int | None = None,
    rank: int | None = None,
    record_id: Callable[[Any], Any] | None = None,
    replay: bool = False,
) -> ResumableLoader | IteratorSource:
    """Return a loader that yields the batches of `loader` and can continue from any batch.

    The result is a `detcore.data.DataSource` and, for a PyTorch loader, a
    ``torch.utils.data.DataLoader``. Random numbers that the dataset or ``collate_fn`` draws from
    ``random``, ``numpy.random``, ``torch`` or a generator in an attribute depend only on the seed,
    the rank and the batch number, whatever ``num_workers`` is. Loading does not change the
    generators of training.

    * A map-style dataset may have any sampler or batch sampler that yields the same number of
      batches in each epoch. A position is restored without reading data.
    * An ``IterableDataset`` must have ``state_dict`` and ``load_state_dict``, or is read again from
      the start of the epoch (`replay`). A ``WebDataset`` continues with the sample of a shard, and
      seeds its shuffles from the seed and the epoch.
    * Grain's ``DataLoader``, ``MapDataset`` and ``IterDataset`` have iterators with a state; see
      `detcore_torch.IteratorSource`, which accepts them without PyTorch.

    Args:
        loader: A ``torch.utils.data.DataLoader``, torchdata's ``StatefulDataLoader``, whose own
            state is then not used, or one of Grain's. It stays as it is.
        seed: Seed of the order and of random records; None: ``torch.initial_seed()``, or the seed
            in the position that `seek` goes to. Not for Grain, which has seeds.
        rank: This worker, of several that draw different random numbers; None: that of a
            ``DistributedSampler``, or of ``torch.distributed``. Not for Grain.
        record_id: Returns the id, an integer of at most 64 bits, of a record of an
            ``IterableDataset``, or the ids of the records in a batch of Grain's, for ``records``.
            Map-style records have their index.
        replay: Whether to restore a position in an ``IterableDataset`` by reading it again. It must
            yield the same records for the same seeds of the generators.

    Raises:
        InvalidDataTypeError: If the loader is of another kind, or its dataset has no state.
        DataError: If training could not be resumed with the loader.
        PluginError: If the version of Grain or WebDataset is not supported.
    """
    if not any(kind.__module__.startswith("grain.") for kind in type(loader).__mro__):
        return resumable_loader(loader, seed=seed, rank=rank, record_id=record_id, replay=replay)
    import_supported("grain", (0, 2), (1,), "grain")
    if seed is not None or rank is not None or replay:
        raise DataError(
            f"seed, rank and replay cannot be used with {describe(loader)}, which has seeds and a "
            "state.\nRemove them."
        )
    return IteratorSource(loader, record_ids=record_id)


def resumable_loader(
    loader: Any,
    *,
    seed: int | None = None,
    rank: int | None = None,
    record_id: Callable[[Any], Any] | None = None,
    replay: bool = False,
) -> ResumableLoader:
    """Return a resumable loader for a PyTorch loader; see `resumable`."""
    if isinstance(loader, ResumableLoader):
        raise InvalidDataTypeError(
            f"the loader is {describe(loader)}, which is already resumable.\n"
            "Two positions would contradict each other.\n"
            "Call resumable only once."
        )
    if not isinstance(loader, torch.utils.data.DataLoader):
        raise InvalidDataTypeError(
            f"the loader is {describe(loader)}.\n"
            "resumable accepts a torch.utils.data.DataLoader, or a Grain DataLoader or dataset.\n"
            "Create a loader: torch.utils.data.DataLoader(dataset, batch_size=...)"
        )
    place = find_rank(loader) if rank is None else rank
    feed: _Feed
    if isinstance(loader.dataset, torch.utils.data.IterableDataset):
        read = loader
        if is_webdataset(loader.dataset):
            read = copy.copy(loader)  # the same settings
            read.__dict__["dataset"] = ShardStream(loader.dataset)
        feed = StreamFeed(read, rank=place, record_id=record_id, replay=replay)
    elif record_id is not None or replay:
        raise DataError(
            f"record_id and replay are for an IterableDataset; the dataset is "
            f"{describe(loader.dataset)}, whose records have indices.\n"
            "Remove them."
        )
    else:
        feed = IndexedFeed(describe_loader(loader), rank=place)
    return ResumableLoader(loader, feed, seed=seed)


class _Feed(Protocol):
    """The batches of a loader, by their number in an epoch."""

    kind: str

    def batches(self, seed: int, epoch: int, start: int) -> Iterator[tuple[Any, Any]]:
        """Yield the remaining batches of an epoch, each with its record ids or None."""

    def state(self, epoch: int) -> dict[str, Any]:
        """Return the part of a position that depends on the kind of the data."""

    def restore(self, seed: int, position: Mapping[str, Any]) -> None:
        """Continue from the part of a position that `state` returned."""


class ResumableLoader(torch.utils.data.DataLoader):  # type: ignore[misc]  # no types here
    """The batches of a PyTorch loader, from any position; created by `resumable`.

    ``for batch in loader`` yields the remaining batches of the current epoch: after a loop that
    ended early, or after `seek`, it continues in the middle. `set_epoch` starts another epoch.
    """

    def __init__(self, loader: Any, feed: _Feed, *, seed: int | None) -> None:
        # Libraries read the loader's attributes, so they are copied instead of creating a loader.
        self.__dict__.update(loader.__dict__)
        self.__dict__["_iterator"] = None
        self._feed = feed
        self._is_seed_given = seed is not None
        self._seed = int(torch.initial_seed() if seed is None else seed) & ((1 << 63) - 1)
        self._epoch = 0
        self._batch = 0
        self._records: Any = None

    @property
    def epoch(self) -> int:
        """Epoch that iteration starts or continues, from 0."""
        return self._epoch

    def __iter__(self) -> Iterator[Any]:
        """Yield the remaining batches of the current epoch."""
        for batch, records in self._feed.batches(self._seed, self._epoch, self._batch):
            self._batch += 1
            self._records = records
            yield batch
        self._epoch += 1
        self._batch = 0

    def set_epoch(self, epoch: int) -> None:
        """Go to the start of an epoch; has no effect in the middle of the same epoch.

        A loop may therefore call it before each epoch, including the epoch that a resumed run
        continues.
        """
        if epoch != self._epoch:
            if isinstance(self._feed, StreamFeed):
                self._feed.leave_epoch()
            self._epoch, self._batch = epoch, 0

    def position(self) -> dict[str, Any]:
        """Return the position after the last batch that iteration yielded, as JSON values.

        Returns:
            ``epoch`` and ``batch``, the number of batches yielded in that epoch, and other values
            that `seek` needs.

        Raises:
            InvalidExperimentError: If the dataset's state would need a pickle.
        """
        return {
            "version": _VERSION,
            "kind": self._feed.kind,
            "seed": self._seed,
            "epoch": self._epoch,
            "batch": self._batch,
            **self._feed.state(self._epoch),
        }

    def seek(self, position: Mapping[str, Any]) -> None:
        """Continue from a position.

        Raises:
            DataError: If it is not a position, or belongs to another loader.
        """
        place = dict(position) if isinstance(position, Mapping) else {}
        counts = [place.get(name) for name in ("seed", "epoch", "batch")]
        if place.get("version") != _VERSION or not all(
            type(count) is int and count >= 0 for count in counts
        ):
            raise DataError(
                f"this is not a position of version {_VERSION} in the data: {position!r:.200}.\n"
                "seek accepts a result of position() of a resumable loader."
            )
        if place.get("kind") != self._feed.kind:
            raise DataError(
                f"the position belongs to {place.get('kind')!r} data, and this loader has "
                f"{self._feed.kind!r} data.\n"
                "It was saved with another kind of dataset.\n"
                "Use the dataset of the checkpoint, or start a new run."
            )
        if self._is_seed_given and place["seed"] != self._seed:
            raise DataError(
                f"the position was saved with the seed {place['seed']}, and this loader has the "
                f"seed {self._seed}.\n"
                "The order of the records would differ.\n"
                f"Call resumable(loader, seed={place['seed']}), or omit the seed."
            )
        self._feed.restore(place["seed"], place)
        self._seed, self._epoch, self._batch = place["seed"], place["epoch"], place["batch"]
        self._records = None

    @property
    def latest_records(self) -> Any:
        """The ids of the records in the last batch; None if unknown."""
        return self._records

    def records(self) -> Any:
        """Return the ids of the records in the last batch, ``(records,), int64``.

        Raises:
            DataError: If no batch was read, or an ``IterableDataset`` has no `record_id`.
        """
        if self._records is None:
            raise DataError(
                "the records of the last batch are not known.\n"
                "Either no batch was read since the loader was created or moved, or it has an "
                "IterableDataset, whose records have no indices.\n"
                "Read a batch first. For an IterableDataset, call "
                "resumable(loader, record_id=lambda record: ...)."
            )
        return np.asarray(self._records, dtype=np.int64)


class IndexedFeed:
    """Batches of a map-style dataset, loaded from the indices of their records.

    Args:
        loader: Description of the batches.
        rank: This worker.
    """

    kind = "indexed"

    def __init__(self, loader: DataLoader, *, rank: int) -> None:
        self._description = loader
        self._rank = rank
        self._requests = BatchRequests()
        self._loader = loader.fetching_loader(self._requests)
        self._order: tuple[int, Any] | None = None

    def batches(self, seed: int, epoch: int, start: int) -> Iterator[tuple[Any, Any]]:
        """Yield the remaining batches of an epoch."""
        order, records = self._find_order(seed), collections.deque[Any]()
        self._requests.request_epoch(
            order, seed, rank=self._rank, epoch=epoch, start=start, records=records
        )
        # Workers have other seeds in each epoch, as in PyTorch.
        self._loader.generator.manual_seed(seed_from(seed, self._rank, epoch))
        for data in raise_failures(iter(self._loader)):
            yield data, records.popleft()

    def state(self, epoch: int) -> dict[str, Any]:
        """Return the length of an epoch, which identifies the data."""
        return {"batches_per_epoch": None if self._order is None else self._find_epoch_length()}

    def restore(self, seed: int, position: Mapping[str, Any]) -> None:
        """Check that the position is inside this data."""
        epoch_length = position.get("batches_per_epoch")
        self._find_order(seed)
        if (
            epoch_length not in (None, self._find_epoch_length())
            or position["batch"] > self._find_epoch_length()
        ):
            raise DataError(
                f"the position is batch {position['batch']} of an epoch of {epoch_length} batches, "
                f"and this loader has {self._find_epoch_length()} batches in an epoch.\n"
                "The data, the batch size or the number of ranks changed, so some records would "
                "be used twice and others never.\n"
                "Use the data and the batch size of the checkpoint."
            )

    def _find_epoch_length(self) -> int:
        return self._order[1].batches_per_epoch if self._order else 0

    def _find_order(self, seed: int) -> Any:
        if self._order is None or self._order[0] != seed:
            self._order = (seed, self._description.order(seed=seed))
        return self._order[1]


def find_rank(loader: Any) -> int:
    """Return the rank of a loader's sampler, or of this process without such a sampler."""
    for sampler in (loader.sampler, getattr(loader.batch_sampler, "sampler", None)):
        if isinstance(sampler, torch.utils.data.DistributedSampler):
            return int(sampler.rank)
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return int(torch.distributed.get_rank())
    return 0
