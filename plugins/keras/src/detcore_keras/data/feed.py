"""Define the interface of training data that can be read from any batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from detcore.errors import DataError

if TYPE_CHECKING:
    from detcore.data import LedgerWriter


Split: TypeAlias = Callable[[Any], tuple[Mapping[str, Any], Any]]
# The record ids of a batch, and its arrays; None and none where they are not known.
Identified: TypeAlias = tuple[npt.NDArray[np.int64] | None, Sequence[npt.NDArray[Any]]]
# Key under which a step returns the number of records in its batch.
RECORD_COUNT = "detcore/record_count"
# Key of the ids of the batch's records.
RECORD_IDS = "detcore/record_ids"


class Feed(Protocol):
    """An endless stream of training batches, epoch after epoch.

    Attributes:
        in_graph: Whether blocks hold many batches, which one graph execution can train on.
        batches_per_epoch: Batches in one pass over the data (over the data of this worker, if
            each has different data); None if unknown.
        element_spec: Nested ``tf.TypeSpec`` of one fetched batch.
        inputs_spec: The same of a block; None if it is unknown.
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

    def block(self, limit: int) -> tuple[Any, int]:
        """Return the inputs of the next batches, and their number: 1 to `limit`."""

    def peek(self) -> Any:
        """Return the inputs of a batch, like a block, without taking it."""

    def fetch(self, inputs: Any, index: Any) -> Any:
        """Return batch `index` of a block; runs in the graph."""

    def advance(self, count: int, outputs: Mapping[str, Any]) -> None:
        """Record that `count` batches of the block were trained on.

        Args:
            count: Number of batches.
            outputs: Outputs of their steps other than the model's metrics; see `Feed.split`.
        """

    def describe(self, ledger: LedgerWriter) -> None:
        """Declare the kind of ids that `log` writes, before any batch is fed."""

    def log(
        self, ledger: LedgerWriter, outputs: Mapping[str, npt.NDArray[Any]], count: int
    ) -> None:
        """Log the record ids of the last `count` batches; call it after `advance`."""

    def identify(self, inputs: Any, indices: range) -> Sequence[Identified]:
        """Return ids and arrays of batches of the last block.

        Call it before the `advance` that counts the batches.

        Args:
            inputs: The block.
            indices: The batches, counted from the first one that was not counted yet.
        """

    def save(self, directory: Path) -> dict[str, Any]:
        """Write files that `restore` needs into `directory`; return JSON values for it."""

    def restore(self, directory: Path, state: Mapping[str, Any]) -> None:
        """Continue at the position of `save`."""

    def seek(self, position: int) -> None:
        """Continue at a batch, after a change of the number of workers."""

    def close(self) -> None:
        """Release workers and memory; nothing if there are none."""
        return


def check_saved(state: Mapping[str, Any], *, kind: str, size: tuple[str, int]) -> None:
    """Raise if a saved data position is not for this data."""
    name, value = size
    if state.get("kind") != kind or state.get(name) != value:
        raise DataError(
            f"the checkpoint's data position is for {state.get('kind')} with "
            f"{state.get(name)} records, but the trial now has {kind} with {value}.\n"
            "Training can only continue with the same data: its remaining records depend on it.\n"
            "Restore the data, or start a new experiment."
        )
