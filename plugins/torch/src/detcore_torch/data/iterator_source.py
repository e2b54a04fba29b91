"""A data source of any library whose iterators have a state, such as Grain."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from detcore.errors import DataError, InvalidDataTypeError, describe
from detcore.types import JSONValue

_VERSION = 1


class IteratorSource:
    """Batches of an iterable whose iterators have ``get_state`` and ``set_state``.

    Each iteration of the iterable is one epoch. Its iterator saves and restores its position, so a
    resumed run is as exact, and as fast, as the library. The number of worker processes is usually
    part of the state: change it only between epochs.

    Args:
        data: The iterable, or a function that returns the iterable of an epoch. Use a function if
            the data set yields the same order each time it is iterated over: ``lambda epoch:
            dataset.seed(epoch).shuffle().batch(32)``.
        record_ids: Returns the ids, integers of at most 64 bits, of the records in a batch, for
            `records`.

    Raises:
        InvalidDataTypeError: If the iterators have no state.

    Example::

        source = IteratorSource(grain_loader, record_ids=lambda batch: batch["id"])
    """

    def __init__(
        self,
        data: Iterable[Any] | Callable[[int], Iterable[Any]],
        *,
        record_ids: Callable[[Any], npt.ArrayLike] | None = None,
    ) -> None:
        self._data = data
        self._record_ids = record_ids
        self._epoch = 0
        self._batch = 0
        self._iterator: Any = self._new_iterator(0)
        self._ids: Any = None

    @property
    def epoch(self) -> int:
        """Epoch that iteration starts or continues, from 0."""
        return self._epoch

    def __iter__(self) -> Iterator[Any]:
        """Yield the remaining batches of the current epoch."""
        for batch in self._iterator:
            self._batch += 1
            if self._record_ids is not None:
                self._ids = self._record_ids(batch)
            yield batch
        if not self._batch:
            raise DataError(
                f"the data, {describe(self._data)}, yields no batch in epoch {self._epoch}.\n"
                "Training would never end.\n"
                "Give the data records, and start over with each iteration."
            )
        self.set_epoch(self._epoch + 1)

    def set_epoch(self, epoch: int) -> None:
        """Go to the start of an epoch; has no effect in the middle of the same epoch."""
        if epoch != self._epoch:
            self._iterator = self._new_iterator(epoch)
            self._epoch, self._batch = epoch, 0

    def position(self) -> dict[str, JSONValue]:
        """Return the position after the last batch that iteration yielded.

        Raises:
            DataError: If the state has a value that JSON cannot represent.
        """
        state = None if not self._batch else self._read_state()
        kind = type(self._iterator).__qualname__
        return {
            "version": _VERSION,
            "kind": kind,
            "epoch": self._epoch,
            "batch": self._batch,
            "state": state,
        }

    def seek(self, position: dict[str, JSONValue]) -> None:
        """Continue from a position.

        Raises:
            DataError: If it is not a position, or belongs to other data.
        """
        place = dict(position) if isinstance(position, dict) else {}
        epoch, batch, state = (place.get(name) for name in ("epoch", "batch", "state"))
        counts = [count for count in (epoch, batch) if type(count) is int and count >= 0]
        if place.get("version") != _VERSION or len(counts) < 2 or (state is None) != (not batch):
            raise DataError(
                f"this is not a position of version {_VERSION} in the data: {position!r:.200}.\n"
                "seek accepts a result of position() of an IteratorSource."
            )
        iterator = self._new_iterator(counts[0])
        if place.get("kind") != type(iterator).__qualname__:
            raise _other_data_error(
                f"it was saved by a {place.get('kind')}, and the data has a "
                f"{type(iterator).__qualname__}"
            )
        if state is not None:
            _set_state(iterator, state)
        self._iterator, (self._epoch, self._batch) = iterator, counts
        self._ids = None

    def records(self) -> npt.NDArray[np.int64]:
        """Return the ids of the records in the last batch, ``(records,), int64``.

        Raises:
            DataError: If no batch was read, or `record_ids` was not given.
        """
        if self._ids is None:
            raise DataError(
                "the records of the last batch are not known.\n"
                "Either no batch was read since the source was created or moved, or the source "
                "has no record_ids.\n"
                "Read a batch first, or pass record_ids=lambda batch: ... to the source."
            )
        return np.asarray(self._ids, dtype=np.int64).ravel()

    def _new_iterator(self, epoch: int) -> Any:
        data: Any = self._data
        iterable = data if hasattr(data, "__iter__") else data(epoch)
        iterator = iter(iterable)
        if not _has_state(iterator):
            raise InvalidDataTypeError(
                f"the data is {describe(iterable)}, whose iterator has no get_state and "
                "set_state.\n"
                "A resumed run could not restore its position.\n"
                "Use an iterable with a state, or write a detcore.data.DataSource."
            )
        return iterator

    def _read_state(self) -> Any:
        state = self._iterator.get_state()
        try:
            if isinstance(state, bytes):
                return {"text": state.decode()}
            return {"values": json.loads(json.dumps(state, default=_as_plain))}
        except (TypeError, ValueError) as error:
            raise DataError(
                f"the state of the data, of a {type(self._iterator).__qualname__}, has a value "
                f"that JSON cannot represent: {error}.\n"
                "Positions in the data are part of checkpoints, which contain no pickles.\n"
                "Remove the transformation that keeps records in its state."
            ) from error


def _has_state(iterator: Any) -> bool:
    return hasattr(iterator, "get_state") and hasattr(iterator, "set_state")


def _set_state(iterator: Any, state: Any) -> None:
    try:
        if "text" in state:
            iterator.set_state(state["text"].encode())
            return
        values, current = state["values"], iterator.get_state()
        if not _may_match(values, current):
            raise ValueError(f"its state is {values!r:.300}, and the data has {current!r:.300}")
        iterator.set_state(values)
    except Exception as error:
        raise _other_data_error(f"{type(error).__name__}: {error}") from error


def _may_match(saved: Any, current: Any) -> bool:
    """Return whether two states may belong to the same data.

    Grain does not check for another number of processes: it fails later, or repeats records (seen
    in 0.2.18).
    """
    if isinstance(saved, dict) and isinstance(current, dict):
        common = saved.keys() & current.keys()
        return (bool(common) or not saved or not current) and all(
            _may_match(saved[name], current[name]) for name in common
        )
    if isinstance(saved, list) and isinstance(current, list | tuple):
        return len(saved) == len(current) and all(map(_may_match, saved, current))
    return isinstance(saved, dict | list) == isinstance(current, dict | list | tuple)


def _other_data_error(why: str) -> DataError:
    return DataError(
        f"the position does not fit the data: {why}.\n"
        "Records would be used twice or never.\n"
        "Use the same data and transformations as the checkpoint and, in the middle of an epoch, "
        "the same number of worker processes."
    )


def _as_plain(value: Any) -> Any:
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"{describe(value)}")
