"""Feed batches of arrays, in an order that is computed from seed and epoch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from detcore.data import IdKind, IndexSampler
from detcore_keras.data.batches import list_leaves, pack_as
from detcore_keras.data.feed import BatchIdentity, Feed, check_saved
from detcore_keras.frameworks import backend

if TYPE_CHECKING:
    from detcore.data import LedgerWriter


# Batches of arrays are gathered and passed to the back end in blocks of at most this size.
_BLOCK_BYTES = 64 << 20


class ArrayFeed(Feed):
    """Batches of arrays in an order that is computed from seed and epoch, never stored.

    NumPy gathers the records block by block, so the arrays (which may be memory-mapped) are never
    copied as a whole.

    Args:
        arrays: x alone, ``(x, y)`` or ``(x, y, sample_weight)``; nested tuples and dicts of arrays.
        sampler: Selects the records of each batch.
    """

    in_graph = True

    def __init__(self, arrays: Any, sampler: IndexSampler) -> None:
        self._arrays: list[npt.NDArray[Any]] = list_leaves(arrays)
        self._structure = arrays
        self._sampler = sampler
        self.batches_per_epoch = sampler.batches_per_epoch
        self.shared_records = sampler.num_records
        specs = [backend.array_spec(array) for array in self._arrays]
        self.element_spec = pack_as(arrays, specs)
        self.inputs_spec = backend.block_spec(specs)
        # The current block: records, bounds of its batches, and epochs.
        self._rows: npt.NDArray[np.int64] = np.zeros(0, np.int64)
        self._bounds: npt.NDArray[np.int32] = np.zeros(1, np.int32)
        self._epochs: npt.NDArray[np.int64] = np.zeros(0, np.int64)
        self._done = 0  # batches of the block that were trained on
        record_bytes = sum(a[:1].nbytes for a in self._arrays)
        batch_bytes = max(1, record_bytes * len(sampler.batch(0)))
        self._block_batches = max(1, _BLOCK_BYTES // batch_bytes)

    def next_block(self, limit: int) -> tuple[Any, int]:
        """Gather the records of the next batches."""
        count = min(limit, self._block_batches)
        rows, ends, self._epochs = self._sampler.joined_batches(
            self.position, self.position + count
        )
        self._bounds = np.zeros(count + 1, np.int32)
        self._bounds[1:] = ends
        self._rows, self._done = rows, 0
        tensors = tuple(backend.as_tensor(array[rows]) for array in self._arrays)
        return (tensors, backend.as_tensor(self._bounds)), count

    def peek_block(self) -> Any:
        """Gather the records of the next batch."""
        return self.next_block(1)[0]

    def fetch_batch(self, inputs: Any, index: Any) -> Any:
        """Slice one batch out of the block; runs in the graph."""
        tensors, offsets = inputs
        start, stop = offsets[index], offsets[index + 1]
        return pack_as(self._structure, [tensor[start:stop] for tensor in tensors])

    def advance(self, count: int, outputs: Mapping[str, Any]) -> None:
        """Record that `count` batches of the block were trained on."""
        self.position += count
        start, self._done = self._done, self._done + count
        self.records = (self.records or 0) + int(self._bounds[self._done] - self._bounds[start])

    def describe_records(self, ledger: LedgerWriter) -> None:
        """Declare that ids are the indices of records."""
        ledger.describe(IdKind.RECORD_INDEX, num_records=self._sampler.num_records)

    def log_records(
        self, ledger: LedgerWriter, outputs: Mapping[str, npt.NDArray[Any]], count: int
    ) -> None:
        """Log the indices of the records."""
        ends, rows, epochs = self._bounds[1:], self._rows, self._epochs
        if count < len(ends):  # a part of the block
            begin = self._done - count
            start, stop = self._bounds[begin], self._bounds[self._done]
            ends, rows = ends[begin : self._done] - start, rows[start:stop]
            epochs = epochs[begin : self._done]
        ledger.log_batches(self.position - count + 1, epochs, ends, rows)

    def identify_batches(self, inputs: Any, indices: Sequence[int]) -> Sequence[BatchIdentity]:
        """Return the indices of the records of batches, and their values."""
        ends = self._bounds[self._done :].tolist()
        batches = [self._rows[ends[index] : ends[index + 1]] for index in indices]
        # Slices of the tensors would take ten times as long, array[rows] three times.
        return [(rows, [array.take(rows, axis=0) for array in self._arrays]) for rows in batches]

    def save(self, directory: Path) -> dict[str, Any]:
        """Return the position, without writing files."""
        return {"kind": "arrays", "num_records": len(self._arrays[0]), "batches": self.position}

    def restore(self, directory: Path, state: Mapping[str, Any]) -> None:
        """Continue at the saved position."""
        check_saved(state, kind="arrays", size=("num_records", len(self._arrays[0])))
        self.position = state["batches"]

    def seek(self, position: int) -> None:
        """Continue at a batch. The order is computed for any number of workers."""
        self.position = position
