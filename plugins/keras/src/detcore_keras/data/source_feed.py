"""Feed the batches of a `detcore.data.DataSource`, such as of PyTorch's loaders and of Grain."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from detcore.data import DataSource, IdKind
from detcore.errors import DataError, InvalidDataTypeError, InvalidExperimentError, describe
from detcore_keras.data.batches import batch_tensors, list_leaves
from detcore_keras.data.feed import BatchIdentity, SingleBatchFeed, check_saved
from detcore_keras.state.random_generators import preserved_rng

if TYPE_CHECKING:
    from detcore.data import LedgerWriter


class SourceFeed(SingleBatchFeed):
    """The batches of a data source, which reports and restores its position.

    Args:
        source: A `detcore.data.DataSource`.
    """

    def __init__(self, source: Any) -> None:
        self._source = source
        self._batches: Iterator[Any] | None = None
        self._epoch_start = 0
        self.batches_per_epoch = len(source) if hasattr(source, "__len__") else None
        with preserved_rng():
            super().__init__(batch_tensors(read_first(source), source))

    def next_block(self, limit: int) -> tuple[Any, int]:
        """Take the next batch, of this epoch or the next."""
        batch = next(self._open_epoch(), None)
        if batch is None:
            if self.position == self._epoch_start:
                raise StopIteration
            self.batches_per_epoch = self.position - self._epoch_start
            self._epoch_start, self._batches = self.position, None
            batch = next(self._open_epoch())
        return self.make_block(batch_tensors(batch, self._source))

    def describe_records(self, ledger: LedgerWriter) -> None:
        """Declare the ids of the source."""
        ledger.describe(IdKind.RECORD_INDEX)

    def log_records(
        self, ledger: LedgerWriter, outputs: Mapping[str, npt.NDArray[Any]], count: int
    ) -> None:
        """Log the ids of the batch's records."""
        ids = self._source.records()
        ends = np.array([len(ids)])
        ledger.log_batches(self.position, np.array([self._source.epoch]), ends, ids)

    def identify_batches(self, inputs: Any, indices: Sequence[int]) -> Sequence[BatchIdentity]:
        """Return the arrays of the batch."""
        return [(None, [np.asarray(leaf) for leaf in list_leaves(inputs)]) for _ in indices]

    def save(self, directory: Path) -> dict[str, Any]:
        """Return the position, without writing files."""
        return {
            "kind": "source",
            "position": self._source.position(),
            "batches": self.position,
            "epoch_start": self._epoch_start,
            "num_batches": self.batches_per_epoch,
        }

    def restore(self, directory: Path, state: Mapping[str, Any]) -> None:
        """Continue at the saved position."""
        if self.batches_per_epoch is None:
            self.batches_per_epoch = state["num_batches"]
        check_saved(state, kind="source", size=("num_batches", self.batches_per_epoch))
        self._source.seek(state["position"])
        self._batches = None
        self.position, self._epoch_start = state["batches"], state["epoch_start"]
        self.batches_per_epoch = state["num_batches"]

    def seek(self, position: int) -> None:
        """Raise an error, because the number of workers cannot change.

        Raises:
            DataError: Always.
        """
        raise DataError("a data source continues only with the number of workers that saved it")

    def _open_epoch(self) -> Iterator[Any]:
        if self._batches is None:
            self._batches = iter(self._source)
        return self._batches


def read_first(source: Any) -> Any:
    """Return the first batch, and move the source back to its position.

    Raises:
        DataError: If the source has no batch.
    """
    position = source.position()
    batches = iter(source)
    batch = next(batches, None)
    del batches
    source.seek(position)
    if batch is None:
        raise DataError(f"the data, {describe(source)}, has no batch.")
    return batch


def check_source(data: Any, role: str, *, num_workers: int) -> bool:
    """Return whether data is a data source.

    Raises:
        InvalidDataTypeError: If data must be wrapped to report its position.
        InvalidExperimentError: If several workers would read the same batches.
    """
    if isinstance(data, DataSource):
        if num_workers > 1:
            raise InvalidExperimentError(
                f"build_{role}_data_loader returned {describe(data)} for {num_workers} workers, "
                "which would all read the same batches.\nSet resources.slots_per_trial: 1."
            )
        return True
    modules = [kind.__module__ for kind in type(data).__mro__]
    if any(module.startswith(("torch.utils.data.", "grain.")) for module in modules):
        raise InvalidDataTypeError(
            f"build_{role}_data_loader returned {describe(data)}, which does not report its "
            "position to detcore.\n"
            "Wrap it, with pip install detcore-torch:\n"
            "  detcore_torch.resumable(loader, seed=1)     a DataLoader of PyTorch\n"
            "  detcore_torch.IteratorSource(data)          a data set or loader of Grain"
        )
    return False
