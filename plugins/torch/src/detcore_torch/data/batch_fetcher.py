"""Load the batch of a request: the part of data loading that runs in worker processes."""

from __future__ import annotations

import contextlib
import dataclasses
import traceback
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from detcore.errors import DataError, DetcoreError, describe
from detcore_torch.libraries import torch
from detcore_torch.state.random_generators import (
    LoadingGenerators,
    find_generators,
    seed_generators,
    seed_owned,
)


class BatchFetcher(torch.utils.data.Dataset):  # type: ignore[misc]  # of a package without types
    """Batches by request ``(seed, record indices)``.

    All random numbers that the dataset and the collate function draw follow from the seed of the
    request, in whichever process they are drawn. In the process that trains, the generators of
    training stay as they were.

    Args:
        dataset: Has ``__len__`` and ``__getitem__``.
        collate: Combines a list of records into a batch.
        is_batched: Whether a batch is a list of records (true) or a single record.
        worker_init_fn: Called in each worker process with its number.
    """

    def __init__(
        self,
        dataset: Any,
        collate: Callable[[Any], Any],
        *,
        is_batched: bool = True,
        worker_init_fn: Callable[[int], None] | None = None,
    ) -> None:
        self._dataset = dataset
        self._collate = collate
        self._is_batched = is_batched
        self._init = worker_init_fn
        self._owned = find_generators(dataset, collate)
        self._training = LoadingGenerators()

    def init_worker(self, worker: int) -> None:
        """Call the user's ``worker_init_fn``."""
        init_loader_process(worker, self._dataset, self._init)

    def __len__(self) -> int:
        """Return the number of records, which libraries read."""
        return len(self._dataset)

    def __getitem__(self, request: tuple[int, Any]) -> Any:
        seed, records = request
        try:
            with self._training:
                seed_generators(seed)
                seed_owned(seed, self._owned)
                return self._make_batch(records if type(records) is list else records.tolist())
        except DataError as error:
            if torch.utils.data.get_worker_info() is None:
                raise
            return make_failed_batch(error)

    def _make_batch(self, indices: list[int]) -> Any:
        with data_errors(
            "the dataset", self._dataset, lambda: f"one of the records {_list_some(indices)}"
        ):
            records = self._fetch_records(indices)
        with data_errors("collate_fn", self._collate, lambda: f"the records {_list_some(indices)}"):
            return self._collate(records)

    def _fetch_records(self, indices: list[int]) -> Any:
        dataset = self._dataset
        try:
            if not self._is_batched:
                return dataset[indices[0]]
            if hasattr(dataset, "__getitems__"):
                return dataset.__getitems__(indices)
            return [dataset[index] for index in indices]
        except IndexError as error:
            raise DataError(
                f"the dataset, {describe(dataset)}, raised IndexError for one of the records "
                f"{_list_some(indices)}: {error}.\n"
                f"Its __len__ returns {len(dataset)}.\n"
                "Return the number of records from __len__, and accept every index below it."
            ) from error


def init_loader_process(
    worker: int, dataset: Any, worker_init_fn: Callable[[int], None] | None
) -> None:
    """Call the user's ``worker_init_fn``, which sees the user's dataset."""
    # WorkerInfo is frozen. Its dataset is replaced by the user's, which this class wraps.
    object.__setattr__(torch.utils.data.get_worker_info(), "dataset", dataset)
    if worker_init_fn is not None:
        worker_init_fn(worker)


@contextlib.contextmanager
def data_errors(name: str, called: object, place: Callable[[], str]) -> Iterator[None]:
    """Translate the errors of the user's dataset or function into detcore's.

    Args:
        name: Name of the called object, for the message.
        called: The object that the block calls.
        place: Returns a description of the records or the batch.

    Raises:
        DataError: If the call failed.
    """
    try:
        yield
    except DetcoreError:
        raise
    except Exception as error:
        raise DataError(
            f"{name}, {describe(called)}, failed on {place()}: {type(error).__name__}: {error}.\n"
            "The position in the data is still before this batch, so a resumed run loads it again."
            f"\nFix {name}, or the records, then resume."
        ) from error


@dataclasses.dataclass(frozen=True, slots=True)
class FailedBatch:
    """An error of a worker process, sent in the place of a batch.

    PyTorch would send an error whose message is a whole traceback.
    """

    message: str
    traceback: str
    kind: type[Exception]

    def to(self, *_: object, **__: object) -> None:
        """Raise the error where a library moves batches to a device, in the process that trains.

        Raises:
            DataError: Always.
        """
        raise DataError(self.message) from self.kind("\n" + self.traceback)


class _WorkerTracebackError(Exception):
    """The traceback of a worker process; the cause of the error that it sent."""


def make_failed_batch(error: DataError) -> FailedBatch:
    """Return the error that is being handled as a value that can be sent."""
    cause = error.__cause__ or error
    # Network and storage errors keep their type, so that the trial restarts.
    kinds = [kind for kind in type(cause).__mro__ if kind.__module__ == "builtins"]
    kind = kinds[0] if issubclass(kinds[0], OSError) else _WorkerTracebackError
    return FailedBatch(str(error), "".join(traceback.format_exception(cause)), kind)


def raise_failures(batches: Iterator[Any]) -> Iterator[Any]:
    """Yield the batches of a loader; raise the error of a `FailedBatch` in its place.

    Raises:
        DataError: If the dataset or the collate function failed.
    """
    for batch in batches:
        if type(batch) is FailedBatch:
            batch.to()
        yield batch


def return_unchanged(batch: Any) -> Any:
    """Return a batch unchanged, for a loader whose dataset returns batches."""
    return batch


def _list_some(indices: Sequence[int]) -> str:
    listing = ", ".join(map(str, indices[:8]))
    return f"{listing} and {len(indices) - 8} more" if len(indices) > 8 else listing
