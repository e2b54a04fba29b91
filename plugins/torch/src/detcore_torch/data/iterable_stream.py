"""Batches of an `IterableDataset`: each worker process reports the state of its copy."""

from __future__ import annotations

import copy
import dataclasses
import itertools
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from detcore.errors import DataError, InvalidDataTypeError, describe
from detcore_torch.data.batch_fetcher import (
    data_errors,
    delivered,
    failure,
    init_loader_process,
    unchanged,
)
from detcore_torch.data.data_loader import check_loader, options_of
from detcore_torch.data.webdataset_stream import ShardStream
from detcore_torch.libraries import torch
from detcore_torch.state.random_generators import (
    LoadingGenerators,
    find_generators,
    seed_from,
    seed_generators,
    seed_owned,
)
from detcore_torch.state.tensor_tree import decode, encode

_logger = logging.getLogger("detcore.torch")


class _Live:
    """State of the dataset in this process, which is read when a position is requested."""


@dataclasses.dataclass(slots=True)
class _Part:
    """Where one process stands in its part of the data.

    Attributes:
        batches: Batches that training took from it in this epoch.
        ended: Whether its part of this epoch is at its end.
        state: State of its copy of the dataset; None: that of a new copy, or unknown.
    """

    batches: int = 0
    ended: bool = False
    state: Any = None


@dataclasses.dataclass(frozen=True, slots=True)
class _Item:
    """A message of a process: a batch, the end of its part, or nothing (its turn is over).

    Attributes:
        worker: The process.
        part: Where it stands after this item; None: where it stood.
        is_batch: Whether there is a batch.
        batch: The batch.
        ids: Ids of its records, if known.
        replayed: Number of batches or samples that were read again before it; empty for none.
        replay_s: The time that took, in seconds.
    """

    worker: int
    part: _Part | None = None
    is_batch: bool = False
    batch: Any = None
    ids: Any = None
    replayed: str = ""
    replay_s: float = 0.0


class StreamFeed:
    """Batches of an ``IterableDataset``, one epoch after the other.

    Each process of a loader has a copy of the dataset, and they take turns. A batch comes with the
    state of its copy, so a position holds the states after the last batches that training took,
    and whose turn it is. In the middle of an epoch it also fixes the number of processes, because
    the dataset may divide itself among them.

    Args:
        loader: The user's loader.
        rank: This rank.
        record_id: Returns the id of a record.
        replay: Whether to return to a position by reading again.
    """

    kind = "stream"

    def __init__(
        self, loader: Any, *, rank: int, record_id: Callable[[Any], Any] | None, replay: bool
    ) -> None:
        check_loader(loader)
        dataset = loader.dataset
        has_state = hasattr(dataset, "state_dict") and hasattr(dataset, "load_state_dict")
        if not has_state and not replay:
            raise _no_state(dataset)
        if has_state and not replay and _has_shuffle_buffer(dataset):
            _logger.info(
                "%s has a shuffle buffer, which its state_dict() does not hold: a resumed run "
                "reads the epoch again up to its place",
                describe(dataset),
            )
            replay = not isinstance(dataset, ShardStream) or not dataset.has_place
        self._has_state = has_state and not replay
        self._user = loader
        self._stream = _Stream(loader, rank, record_id, has_state=self._has_state)
        self._parts = [_Part() for _ in range(self._num_parts())]
        self._turn = 0
        # A dataset in this process keeps the state in which a pass leaves it.
        self._first = copy.deepcopy(dataset.state_dict()) if self._has_state else None

    def batches(self, seed: int, epoch: int, start: int) -> Iterator[tuple[Any, Any]]:
        """Yield the rest of an epoch."""
        for part in self._parts:
            if part.state is _Live and part.batches:
                # A new iteration of the dataset may begin again, so it gets its own state.
                part.state = copy.deepcopy(self._user.dataset.state_dict())
        self._stream.start(seed, epoch, self._parts, self._turn)
        num_taken = start
        for item in delivered(iter(self._inner_loader(seed, epoch))):
            if item.replayed:
                self._report_replay(item)
            if item.part is not None:
                self._parts[item.worker] = item.part
            if item.is_batch:
                self._turn = (item.worker + 1) % len(self._parts)
                num_taken += 1
                yield item.batch, item.ids
        if not num_taken:
            raise DataError(
                f"the dataset, {describe(self._user.dataset)}, yields no batch in epoch {epoch}.\n"
                "Training would never end.\n"
                "Give it records; let __iter__ begin again once it has reached its end."
            )
        self.leave_epoch()

    def state(self, epoch: int) -> dict[str, Any]:
        """Return the states of the processes.

        Raises:
            InvalidExperimentError: If a state has a value that is neither a tensor nor plain.
        """
        tensors: dict[str, Any] = {}
        parts = []
        dataset = self._user.dataset
        for index, part in enumerate(self._parts):
            state = dataset.state_dict() if part.state is _Live else part.state
            name = f"{type(dataset).__name__}.state_dict() of process {index}"
            parts.append([part.batches, part.ended, encode(state, tensors, name)])
        saved = {
            name: {"dtype": str(tensor.dtype).removeprefix("torch."), "values": tensor.tolist()}
            for name, tensor in tensors.items()
        }
        return {"turn": self._turn, "parts": parts, "tensors": saved}

    def restore(self, seed: int, position: Mapping[str, Any]) -> None:
        """Continue with the states of a position."""
        try:
            tensors = {
                name: torch.tensor(saved["values"], dtype=getattr(torch, saved["dtype"]))
                for name, saved in position["tensors"].items()
            }
            parts = [
                _Part(int(batches), bool(ended), decode(state, tensors))
                for batches, ended, state in position["parts"]
            ]
            turn = int(position["turn"])
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise DataError(
                f"the position in the data is damaged: {type(error).__name__}: {error}.\n"
                "seek takes what position() of a resumable loader returned."
            ) from error
        if all(part == _Part() for part in parts):  # a new epoch takes any number of processes
            parts = [_Part(state=self._first) for _ in range(self._num_parts())]
        elif len(parts) != self._num_parts():
            _logger.info(
                "this epoch continues with the %d loader processes that began it, because an "
                "IterableDataset may divide itself among them; num_workers=%d takes effect in the "
                "next epoch",
                len(parts),
                self._user.num_workers,
            )
        self._parts, self._turn = parts, turn

    def leave_epoch(self) -> None:
        """Go to the beginning of an epoch, as a new iteration of the user's loader does."""
        has_live = self._has_state and not self._user.num_workers
        dataset = self._user.dataset
        is_numbered = isinstance(dataset, ShardStream) or hasattr(dataset, "set_epoch")
        state = _Live if has_live and not is_numbered else None
        self._parts = [_Part(state=state) for _ in range(self._num_parts())]
        self._turn = 0

    def _num_parts(self) -> int:
        return max(1, int(self._user.num_workers))

    def _inner_loader(self, seed: int, epoch: int) -> Any:
        """Return a loader of PyTorch's with a process for each part, or none for a single one."""
        user, count = self._user, len(self._parts)
        options = options_of(user)
        if count != self._num_parts():
            options |= {"num_workers": count}
            if not user.num_workers:
                options |= {"prefetch_factor": None}
        return torch.utils.data.DataLoader(
            self._stream,
            batch_size=None,
            collate_fn=unchanged,
            # Workers get the states of an epoch's beginning when they start.
            **{**options, "persistent_workers": False, "worker_init_fn": self._stream.init_worker},
            generator=torch.Generator().manual_seed(seed_from(seed, epoch)),
        )

    def _report_replay(self, item: _Item) -> None:
        _logger.info(
            "process %d read %s of %s again to return to its place, in %.1f s",
            item.worker,
            item.replayed,
            describe(self._user.dataset),
            item.replay_s,
        )


class _Stream(torch.utils.data.IterableDataset):  # type: ignore[misc]  # no types here
    """The batches of one process; sent to worker processes with the place of each."""

    def __init__(
        self, loader: Any, rank: int, record_id: Callable[[Any], Any] | None, *, has_state: bool
    ) -> None:
        self._dataset = loader.dataset
        self._is_batched = loader.batch_size is not None
        self._size = loader.batch_size if self._is_batched else 1
        self._drop_last = loader.drop_last
        self._collate = loader.collate_fn
        self._init = loader.worker_init_fn
        self._rank = rank
        self._record_id = record_id
        self._has_state = has_state
        self._training = LoadingGenerators()

    def start(self, seed: int, epoch: int, parts: list[_Part], turn: int) -> None:
        """Set the place of each process."""
        self._seed, self._epoch, self._parts, self._turn = seed, epoch, list(parts), turn

    def init_worker(self, worker: int) -> None:
        """Call the user's ``worker_init_fn``."""
        init_loader_process(worker, self._dataset, self._init)

    def __iter__(self) -> Iterator[Any]:
        info = torch.utils.data.get_worker_info()
        me = 0 if info is None else info.id
        try:
            yield from self._items(me)
        except DataError as error:
            if info is None:
                raise
            yield failure(error)

    def _items(self, me: int) -> Iterator[_Item]:
        part = self._parts[me]
        if part.ended:
            self._load(part)
            return
        if me < self._turn:
            yield _Item(me)
        began = time.perf_counter()
        number, replayed = self._skip(me, part)
        replay_s = time.perf_counter() - began
        while True:
            with self._training:
                records = self._take(me, number)
                if not records:
                    break
                batch, ids = self._made(records), self._ids(records)
            number += 1
            # The state after a short batch is that after the end.
            has_ended = len(records) < self._size
            yield _Item(
                me,
                _Part(number, has_ended, self._state()),
                is_batch=True,
                batch=batch,
                ids=ids,
                replayed=replayed,
                replay_s=replay_s,
            )
            replayed = ""
            if has_ended:
                return
        yield _Item(me, _Part(number, True, self._state()))

    def _skip(self, me: int, part: _Part) -> tuple[int, str]:
        """Begin to read; return the number of the next batch, and the amount read again."""
        dataset = self._dataset
        with self._training:
            seed = seed_from(self._seed, self._rank, self._epoch, me)
            seed_generators(seed)
            if not self._has_state:
                # A new copy of the dataset would have them in their first state.
                seed_owned(seed, find_generators(dataset))
            if isinstance(dataset, ShardStream):
                dataset.begin_epoch(self._seed, self._epoch)
            elif hasattr(dataset, "set_epoch"):
                dataset.set_epoch(self._epoch)
            self._load(part)
            self._records = iter(dataset)
        self._may_begin_again = part.batches == 0 and part.state is not None
        if self._has_state:
            num_samples = getattr(dataset, "num_read_again", 0)
            return part.batches, f"{num_samples} samples" if num_samples else ""
        for number in range(part.batches):
            with self._training:
                if not self._take(me, number):
                    raise _ended_early(dataset, self._epoch, number, part.batches)
        return part.batches, f"{part.batches} batches" if part.batches else ""

    def _load(self, part: _Part) -> None:
        if self._has_state and part.state not in (None, _Live):
            self._dataset.load_state_dict(part.state)

    def _take(self, me: int, number: int) -> list[Any]:
        """Return the records of a batch; none at the end."""
        seed_generators(seed_from(self._seed, self._rank, self._epoch, me, number))
        place = f"batch {number} of epoch {self._epoch}"
        with data_errors("the dataset", self._dataset, lambda: place):
            records = list(itertools.islice(self._records, self._size))
            if not records and self._may_begin_again:
                # The state was that of the end of the epoch before.
                self._records = iter(self._dataset)
                records = list(itertools.islice(self._records, self._size))
        self._may_begin_again = False
        return [] if self._drop_last and len(records) < self._size else records

    def _made(self, records: list[Any]) -> Any:
        with data_errors("collate_fn", self._collate, lambda: f"the next {len(records)} records"):
            return self._collate(records if self._is_batched else records[0])

    def _ids(self, records: list[Any]) -> list[int] | None:
        if self._record_id is None:
            return None
        ids = [np.ravel(self._record_id(record)) for record in records]
        return [int(index) for found in ids for index in found]

    def _state(self) -> Any:
        if not self._has_state:
            return None
        if torch.utils.data.get_worker_info() is None:
            return _Live
        return self._dataset.state_dict()


class EpochStream(_Stream):
    """The batches of whole epochs of an ``IterableDataset``, which are the same when read again.

    For a library that returns to its place by reading again. All random numbers follow from the
    seed, the epoch and the number of the batch, and the generators of training stay as they are.

    Args:
        loader: The user's loader. On several ranks that read the data, it reads the same on each.
        seed: Seed of the order and of random records.
    """

    def __init__(self, loader: Any, *, seed: int) -> None:
        super().__init__(loader, 0, None, has_state=False)
        self._loader = loader
        self._order_seed = seed
        self.set_epoch(0)

    def __len__(self) -> int:
        """Return the number of batches; raises a TypeError if the dataset has no length."""
        return len(self._loader)

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of the next iteration."""
        parts = [_Part() for _ in range(max(1, int(self._loader.num_workers)))]
        self.start(self._order_seed, epoch, parts, 0)

    def __iter__(self) -> Iterator[Any]:
        for item in super().__iter__():
            if not isinstance(item, _Item):  # the error of a worker process
                yield item
            elif item.is_batch:
                yield item.batch


def _has_shuffle_buffer(dataset: Any) -> bool:
    """Return whether a dataset of a known library shuffles in a buffer (seen in datasets 5.2)."""
    if isinstance(dataset, ShardStream):
        return dataset.reads_shards_again or not dataset.has_place
    if not type(dataset).__module__.startswith("datasets."):
        return False
    part = getattr(dataset, "_ex_iterable", None)
    while part is not None and "BufferShuffled" not in type(part).__name__:
        part = getattr(part, "ex_iterable", None)
    return part is not None


def _no_state(dataset: Any) -> InvalidDataTypeError:
    return InvalidDataTypeError(
        f"the dataset is {describe(dataset)}, an IterableDataset without state_dict and "
        "load_state_dict.\n"
        "Its records have no numbers, so a resumed run could not return to its place.\n"
        "Give it the two methods, use a dataset with __len__ and __getitem__, or call "
        "resumable(loader, replay=True) to read it again from the beginning of the epoch."
    )


def _ended_early(dataset: Any, epoch: int, found: int, expected: int) -> DataError:
    return DataError(
        f"the dataset, {describe(dataset)}, ends after {found} batches of epoch {epoch}, and "
        f"{expected} were taken from it before.\n"
        "It does not yield the same records again, so a resumed run cannot return to its place.\n"
        "Let it yield the same records when random generators are seeded the same, or give it "
        "state_dict and load_state_dict."
    )
