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
    init_loader_process,
    make_failed_batch,
    raise_failures,
    return_unchanged,
)
from detcore_torch.data.data_loader import check_loader, list_options
from detcore_torch.data.webdataset_stream import ShardStream
from detcore_torch.libraries import torch
from detcore_torch.state.random_generators import (
    LoadingGenerators,
    find_generators,
    seed_from,
    seed_generators,
    seed_owned,
)
from detcore_torch.state.tensor_tree import decode_tree, encode_tree

_logger = logging.getLogger("detcore.torch")


class _Live:
    """State of the dataset in this process, which is read when a position is requested."""


@dataclasses.dataclass(slots=True)
class _Part:
    """Position of one process in its part of the data.

    Attributes:
        batches: Batches of this process that training used in this epoch.
        ended: Whether its part of this epoch is exhausted.
        state: State of its copy of the dataset; None for a new copy, or if unknown.
    """

    batches: int = 0
    ended: bool = False
    state: Any = None


@dataclasses.dataclass(frozen=True, slots=True)
class _Item:
    """A message of a process: a batch, the end of its part, or only the end of its turn.

    Attributes:
        worker: The process.
        part: Its position after this item; None if unchanged.
        is_batch: Whether the item has a batch.
        batch: The batch.
        ids: Ids of its records, if known.
        replayed: Number of batches or samples that were read again before this item; empty for
            none.
        replay_s: Duration of the replay, in seconds.
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

    Each process of a loader has a copy of the dataset, and the processes take turns. Each batch
    carries the state of its copy, so a position holds the states after the last batches that
    training used, and the next process. In the middle of an epoch it also fixes the number of
    processes, because
    the dataset may divide itself among them.

    Args:
        loader: The user's loader.
        rank: This rank.
        record_id: Returns the id of a record.
        replay: Whether to restore a position by reading the epoch again.
    """

    kind = "stream"

    def __init__(
        self, loader: Any, *, rank: int, record_id: Callable[[Any], Any] | None, replay: bool
    ) -> None:
        check_loader(loader)
        dataset = loader.dataset
        has_state = hasattr(dataset, "state_dict") and hasattr(dataset, "load_state_dict")
        if not has_state and not replay:
            raise _no_state_error(dataset)
        if has_state and not replay and _has_shuffle_buffer(dataset):
            _logger.info(
                "%s has a shuffle buffer, which its state_dict() does not contain: a resumed run "
                "reads the epoch again up to its position",
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
        """Yield the remaining batches of an epoch."""
        for part in self._parts:
            if part.state is _Live and part.batches:
                # A new iteration of the dataset may start over, so it gets its own state.
                part.state = copy.deepcopy(self._user.dataset.state_dict())
        self._stream.set_place(seed, epoch, self._parts, self._turn)
        num_taken = start
        for item in raise_failures(iter(self._inner_loader(seed, epoch))):
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
                "Give the dataset records, and let __iter__ start over after its end."
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
            parts.append([part.batches, part.ended, encode_tree(state, tensors, name)])
        values = {
            name: {"dtype": str(tensor.dtype).removeprefix("torch."), "values": tensor.tolist()}
            for name, tensor in tensors.items()
        }
        return {"turn": self._turn, "parts": parts, "tensors": values}

    def restore(self, seed: int, position: Mapping[str, Any]) -> None:
        """Continue with the states of a position."""
        try:
            tensors = {
                name: torch.tensor(values["values"], dtype=getattr(torch, values["dtype"]))
                for name, values in position["tensors"].items()
            }
            parts = [
                _Part(int(batches), bool(ended), decode_tree(state, tensors))
                for batches, ended, state in position["parts"]
            ]
            turn = int(position["turn"])
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise DataError(
                f"the position in the data is damaged: {type(error).__name__}: {error}.\n"
                "seek accepts a result of position() of a resumable loader."
            ) from error
        if all(part == _Part() for part in parts):  # a new epoch accepts any number of processes
            parts = [_Part(state=self._first) for _ in range(self._num_parts())]
        elif len(parts) != self._num_parts():
            _logger.info(
                "this epoch continues with the %d loader processes that started it, because an "
                "IterableDataset may divide itself among them; num_workers=%d takes effect in the "
                "next epoch",
                len(parts),
                self._user.num_workers,
            )
        self._parts, self._turn = parts, turn

    def leave_epoch(self) -> None:
        """Go to the start of an epoch, as a new iteration of the user's loader does."""
        has_live = self._has_state and not self._user.num_workers
        dataset = self._user.dataset
        is_numbered = isinstance(dataset, ShardStream) or hasattr(dataset, "set_epoch")
        state = _Live if has_live and not is_numbered else None
        self._parts = [_Part(state=state) for _ in range(self._num_parts())]
        self._turn = 0

    def _num_parts(self) -> int:
        return max(1, int(self._user.num_workers))

    def _inner_loader(self, seed: int, epoch: int) -> Any:
        """Return a PyTorch loader with one process per part, or no process for a single part."""
        user, count = self._user, len(self._parts)
        options = list_options(user)
        if count != self._num_parts():
            options |= {"num_workers": count}
            if not user.num_workers:
                options |= {"prefetch_factor": None}
        return torch.utils.data.DataLoader(
            self._stream,
            batch_size=None,
            collate_fn=return_unchanged,
            # Workers receive the states at the start of an epoch when they start.
            **{**options, "persistent_workers": False, "worker_init_fn": self._stream.init_worker},
            generator=torch.Generator().manual_seed(seed_from(seed, epoch)),
        )

    def _report_replay(self, item: _Item) -> None:
        _logger.info(
            "process %d read %s of %s again to restore its position, in %.1f s",
            item.worker,
            item.replayed,
            describe(self._user.dataset),
            item.replay_s,
        )


class _Stream(torch.utils.data.IterableDataset):  # type: ignore[misc]  # no types here
    """The batches of one process; sent to the worker processes with their positions."""

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

    def set_place(self, seed: int, epoch: int, parts: list[_Part], turn: int) -> None:
        """Set the position of each process."""
        self._seed, self._epoch, self._parts, self._turn = seed, epoch, list(parts), turn

    def init_worker(self, worker: int) -> None:
        """Call the user's ``worker_init_fn``."""
        init_loader_process(worker, self._dataset, self._init)

    def __iter__(self) -> Iterator[Any]:
        info = torch.utils.data.get_worker_info()
        me = 0 if info is None else info.id
        try:
            yield from self._yield_items(me)
        except DataError as error:
            if info is None:
                raise
            yield make_failed_batch(error)

    def _yield_items(self, me: int) -> Iterator[_Item]:
        part = self._parts[me]
        if part.ended:
            self._load_state(part)
            return
        if me < self._turn:
            yield _Item(me)
        started_at = time.perf_counter()
        number, replayed = self._start_reading(me, part)
        replay_s = time.perf_counter() - started_at
        while True:
            with self._training:
                records = self._take_records(me, number)
                if not records:
                    break
                batch, ids = self._collate_records(records), self._read_ids(records)
            number += 1
            # The state after a short batch is the state at the end.
            has_ended = len(records) < self._size
            yield _Item(
                me,
                _Part(number, has_ended, self._read_state()),
                is_batch=True,
                batch=batch,
                ids=ids,
                replayed=replayed,
                replay_s=replay_s,
            )
            replayed = ""
            if has_ended:
                return
        yield _Item(me, _Part(number, True, self._read_state()))

    def _start_reading(self, me: int, part: _Part) -> tuple[int, str]:
        """Start reading; return the number of the next batch, and the amount of data read again."""
        dataset = self._dataset
        with self._training:
            seed = seed_from(self._seed, self._rank, self._epoch, me)
            seed_generators(seed)
            if not self._has_state:
                # A new copy of the dataset would have generators in their initial state.
                seed_owned(seed, find_generators(dataset))
            if isinstance(dataset, ShardStream):
                dataset.begin_epoch(self._seed, self._epoch)
            elif hasattr(dataset, "set_epoch"):
                dataset.set_epoch(self._epoch)
            self._load_state(part)
            self._records = iter(dataset)
        self._may_begin_again = part.batches == 0 and part.state is not None
        if self._has_state:
            num_samples = getattr(dataset, "num_read_again", 0)
            return part.batches, f"{num_samples} samples" if num_samples else ""
        for number in range(part.batches):
            with self._training:
                if not self._take_records(me, number):
                    raise _ended_early_error(dataset, self._epoch, number, part.batches)
        return part.batches, f"{part.batches} batches" if part.batches else ""

    def _load_state(self, part: _Part) -> None:
        if self._has_state and part.state not in (None, _Live):
            self._dataset.load_state_dict(part.state)

    def _take_records(self, me: int, number: int) -> list[Any]:
        """Return the records of a batch; an empty list at the end."""
        seed_generators(seed_from(self._seed, self._rank, self._epoch, me, number))
        place = f"batch {number} of epoch {self._epoch}"
        with data_errors("the dataset", self._dataset, lambda: place):
            records = list(itertools.islice(self._records, self._size))
            if not records and self._may_begin_again:
                # The state was taken at the end of the previous epoch.
                self._records = iter(self._dataset)
                records = list(itertools.islice(self._records, self._size))
        self._may_begin_again = False
        return [] if self._drop_last and len(records) < self._size else records

    def _collate_records(self, records: list[Any]) -> Any:
        with data_errors("collate_fn", self._collate, lambda: f"the next {len(records)} records"):
            return self._collate(records if self._is_batched else records[0])

    def _read_ids(self, records: list[Any]) -> list[int] | None:
        if self._record_id is None:
            return None
        ids = [np.ravel(self._record_id(record)) for record in records]
        return [int(index) for record_ids in ids for index in record_ids]

    def _read_state(self) -> Any:
        if not self._has_state:
            return None
        if torch.utils.data.get_worker_info() is None:
            return _Live
        return self._dataset.state_dict()


class EpochStream(_Stream):
    """The batches of whole epochs of an ``IterableDataset``, which are the same when read again.

    For libraries that restore their position by reading the epoch again. All random numbers follow
    from the seed, the epoch and the batch number. The generators of training do not change.

    Args:
        loader: The user's loader. It yields the same batches on each rank that reads the data.
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
        self.set_place(self._order_seed, epoch, parts, 0)

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


def _no_state_error(dataset: Any) -> InvalidDataTypeError:
    return InvalidDataTypeError(
        f"the dataset is {describe(dataset)}, an IterableDataset without state_dict and "
        "load_state_dict.\n"
        "Its records have no indices, so a resumed run could not restore its position.\n"
        "Add the two methods, use a dataset with __len__ and __getitem__, or call "
        "resumable(loader, replay=True) to read the data again from the start of the epoch."
    )


def _ended_early_error(dataset: Any, epoch: int, num_batches: int, expected: int) -> DataError:
    return DataError(
        f"the dataset, {describe(dataset)}, ends after {num_batches} batches of epoch {epoch}, and "
        f"yielded {expected} before.\n"
        "It does not yield the same records again, so a resumed run cannot restore its position.\n"
        "Yield the same records for the same seeds of the random generators, or add state_dict "
        "and load_state_dict."
    )
