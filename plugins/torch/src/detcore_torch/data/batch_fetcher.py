"""Make a batch from its request: the part of loading that runs in worker processes."""

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
        collate: Makes a batch from a list of records.
        is_batched: Whether a batch is a list of records; else it is one record.
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
        """Return the number of records; libraries ask for it."""
        return len(self._dataset)

    def __getitem__(self, request: tuple[int, Any]) -> Any:
        seed, records = request
        try:
            with self._training:
                seed_generators(seed)
                seed_owned(seed, self._owned)
                return self._make(records if type(records) is list else records.tolist())
        except DataError as error:
            if torch.utils.data.get_worker_info() is None:
                raise
            return failure(error)

    def _make(self, indices: list[int]) -> Any:
        with data_errors(
            "the dataset", self._dataset, lambda: f"one of the records {_some(indices)}"
        ):
            records = self._fetch(indices)
        with data_errors("collate_fn", self._collate, lambda: f"the records {_some(indices)}"):
            return self._collate(records)

    def _fetch(self, indices: list[int]) -> Any:
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
                f"{_some(indices)}: {error}.\n"
                f"Its __len__ says that it has {len(dataset)} records.\n"
                "Let __len__ return their number, and __getitem__ take every index below it."
            ) from error


def init_loader_process(
    worker: int, dataset: Any, worker_init_fn: Callable[[int], None] | None
) -> None:
    """Call the user's ``worker_init_fn``, which sees the user's dataset."""
    # Of a frozen class, but meant for this: the dataset of the process is behind this one.
    object.__setattr__(torch.utils.data.get_worker_info(), "dataset", dataset)
    if worker_init_fn is not None:
        worker_init_fn(worker)


@contextlib.contextmanager
def data_errors(name: str, called: object, place: Callable[[], str]) -> Iterator[None]:
    """Translate the errors of the user's dataset or function into detcore's.

    Args:
        name: What is called in the block, for the message.
        called: The object.
        place: Returns the records or the batch that it is called for.

    Raises:
        DataError: If it failed.
    """
    try:
        yield
    except DetcoreError:
        raise
    except Exception as error:
        raise DataError(
            f"{name}, {describe(called)}, failed on {place()}: {type(error).__name__}: {error}.\n"
            "The position in the data is still before this batch, so a resumed run makes it again."
            f"\nCorrect {name}, or the records, and resume."
        ) from error


@dataclasses.dataclass(frozen=True, slots=True)
class FailedBatch:
    """An error of a worker process, sent in the place of a batch.

    PyTorch would send it, too, as an error whose message is a whole traceback.
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


def failure(error: DataError) -> FailedBatch:
    """Return an error that is being handled as a value to send."""
    cause = error.__cause__ or error
    # A fault of a network or a storage stays one, so that the trial starts again.
    kinds = [kind for kind in type(cause).__mro__ if kind.__module__ == "builtins"]
    kind = kinds[0] if issubclass(kinds[0], OSError) else _WorkerTracebackError
    return FailedBatch(str(error), "".join(traceback.format_exception(cause)), kind)


def delivered(batches: Iterator[Any]) -> Iterator[Any]:
    """Yield the batches of a loader; raise the error of a `FailedBatch` in its place.

    Raises:
        DataError: If the dataset or the collate function failed.
    """
    for batch in batches:
        if type(batch) is FailedBatch:
            batch.to()
        yield batch


def unchanged(batch: Any) -> Any:
    """Return a batch as it is; for a loader whose dataset makes batches itself."""
    return batch


def _some(indices: Sequence[int]) -> str:
    shown = ", ".join(map(str, indices[:8]))
    return f"{shown} and {len(indices) - 8} more" if len(indices) > 8 else shown
