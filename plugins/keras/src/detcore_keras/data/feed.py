"""Define the interface of training data that can be read from any batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from detcore.errors import DataError
from detcore_keras.data.batches import batch_spec, list_leaves
from detcore_keras.frameworks import backend

if TYPE_CHECKING:
    from detcore.data import LedgerWriter


Split: TypeAlias = Callable[[Any], tuple[Mapping[str, Any], Any]]
# The record ids of a batch, and its arrays. If unknown, these are None and an empty sequence.
BatchIdentity: TypeAlias = tuple[npt.NDArray[np.int64] | None, Sequence[npt.NDArray[Any]]]


class Feed(Protocol):
    """An endless stream of training batches.

    Attributes:
        in_graph: Whether blocks hold many batches, which one graph execution can train on.
        batches_per_epoch: Batches in one pass over the data (over the data of this worker, if
            each has different data); None if unknown.
        element_spec: Nested specification of one fetched batch.
        inputs_spec: The specification of a block; None if unknown.
        split: See `TrainSteps`; None if a fetched batch needs no splitting.
        position: Batches fed and trained on so far.
        records: Records trained on by this process; None if unknown.
        shared_records: Records or items that all workers take their batches from; None if each
            worker has different data.
    """

    in_graph: bool
    batches_per_epoch: int | None
    element_spec: Any
    inputs_spec: Any = None
    split: Split | None = None
    position: int = 0
    records: int | None = 0
    shared_records: int | None = None

    def next_block(self, limit: int) -> tuple[Any, int]:
        """Return the inputs of the next batches, and their number: 1 to `limit`."""

    def peek_block(self) -> Any:
        """Return the inputs of a batch, like a block, without consuming the batch."""

    def fetch_batch(self, inputs: Any, index: Any) -> Any:
        """Return batch `index` of a block; runs in the graph."""

    def advance(self, count: int, outputs: Mapping[str, Any]) -> None:
        """Record that `count` batches of the block were trained on.

        Args:
            count: Number of batches.
            outputs: Outputs of their steps other than the model's metrics; see `Feed.split`.
        """

    def describe_records(self, ledger: LedgerWriter) -> None:
        """Declare the kind of ids that `log` writes, before any batch is fed."""

    def log_records(
        self, ledger: LedgerWriter, outputs: Mapping[str, npt.NDArray[Any]], count: int
    ) -> None:
        """Log the record ids of the last `count` batches. Call it after `advance`."""

    def identify_batches(self, inputs: Any, indices: Sequence[int]) -> Sequence[BatchIdentity]:
        """Return ids and arrays of batches of the last block.

        Call it before the `advance` that counts the batches.

        Args:
            inputs: The block.
            indices: The batches, numbered from the first batch that `advance` has not counted.
        """

    def save(self, directory: Path) -> dict[str, Any]:
        """Write the files for `restore` into `directory`, and return JSON values for it."""

    def restore(self, directory: Path, state: Mapping[str, Any]) -> None:
        """Continue at the position of `save`."""

    def seek(self, position: int) -> None:
        """Continue at a batch, after a change of the number of workers."""

    def close(self) -> None:
        """Release workers and memory."""
        return


class SingleBatchFeed(Feed):
    """A feed whose blocks hold one batch.

    Args:
        first: A batch, for its specification and `peek_block`.
    """

    in_graph = False
    _block_records = 0

    def __init__(self, first: Any) -> None:
        self._first = first
        self.element_spec = self.inputs_spec = batch_spec(first)

    def make_block(self, batch: Any) -> tuple[Any, int]:
        """Return the next batch as a block."""
        self._block_records = backend.count_records(list_leaves(batch))
        return batch, 1

    def peek_block(self) -> Any:
        """Return the batch that the constructor received."""
        return self._first

    def fetch_batch(self, inputs: Any, index: Any) -> Any:
        """Return the block, which is one batch."""
        return inputs

    def advance(self, count: int, outputs: Mapping[str, Any]) -> None:
        """Record that the batch was trained on."""
        self.position += count
        self.records = (self.records or 0) + self._block_records


def check_saved(state: Mapping[str, Any], *, kind: str, size: tuple[str, int | None]) -> None:
    """Raise an error if a saved data position is not for this data."""
    name, value = size
    if state.get("kind") != kind or state.get(name) != value:
        raise DataError(
            f"the checkpoint's data position is for {state.get('kind')} with "
            f"{state.get(name)} records, but the trial now has {kind} with {value}.\n"
            "Training can only continue with the same data.\n"
            "Restore the data, or start a new experiment."
        )
