"""Feed the items of a Sequence, prepared by a loader."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from detcore.data import IdKind, IndexSampler
from detcore.errors import DataError
from detcore_keras.data.batches import batch_tensors, list_leaves
from detcore_keras.data.data_settings import DataSettings, SequenceAdapter
from detcore_keras.data.feed import BatchIdentity, SingleBatchFeed, check_saved
from detcore_keras.data.sequence_loader import SequenceLoader
from detcore_keras.frameworks import keras
from detcore_keras.state.random_generators import preserved_rng

if TYPE_CHECKING:
    from detcore.data import LedgerWriter


class SequenceFeed(SingleBatchFeed):
    """The items of a Sequence, prepared by a loader, in an order computed from seed and epoch.

    Args:
        sequence: The Sequence.
        sampler: Selects the item at each position (one "record" is one item).
        loader: Prepares items.
    """

    def __init__(self, sequence: Any, sampler: IndexSampler, loader: SequenceLoader) -> None:
        self._sequence = sequence
        self._sampler = sampler
        self._loader = loader
        self._items: Generator[Any, None, None] | None = None
        self.batches_per_epoch = sampler.batches_per_epoch
        self.shared_records = sampler.num_records
        with preserved_rng():
            super().__init__(batch_tensors(loader.read_item(0), sequence))

    def next_block(self, limit: int) -> tuple[Any, int]:
        """Take the next item."""
        if self._items is None:
            self._items = self._open_items()
        return self.make_block(batch_tensors(next(self._items), self._sequence))

    def advance(self, count: int, outputs: Mapping[str, Any]) -> None:
        """Record that the item was trained on; notify the Sequence at the end of an epoch."""
        super().advance(count, outputs)
        if self._sampler.epoch(self.position) > self._loader.epochs_ended:
            self._close_items()
            self._loader.end_epoch()

    def describe_records(self, ledger: LedgerWriter) -> None:
        """Declare that ids are the indices of items."""
        ledger.describe(IdKind.SEQUENCE_ITEM, num_records=self._sampler.num_records)

    def log_records(
        self, ledger: LedgerWriter, outputs: Mapping[str, npt.NDArray[Any]], count: int
    ) -> None:
        """Log the index of the item."""
        first = self.position - count
        indices, ends, epochs = self._sampler.joined_batches(first, self.position)
        ledger.log_batches(first + 1, epochs, ends, indices)

    def identify_batches(self, inputs: Any, indices: Sequence[int]) -> Sequence[BatchIdentity]:
        """Return the index of the item, and its arrays."""
        arrays = [np.asarray(leaf) for leaf in list_leaves(inputs)]
        return [(self._sampler.batch(self.position), arrays) for _ in indices]

    def save(self, directory: Path) -> dict[str, Any]:
        """Return the position and the Sequence's generators, without writing files."""
        return {
            "kind": "sequence",
            "num_records": len(self._sequence),
            "batches": self.position,
            "loader": self._loader.state_dict(),
        }

    def restore(self, directory: Path, state: Mapping[str, Any]) -> None:
        """Continue at the saved position, replaying the ends of earlier epochs."""
        check_saved(state, kind="sequence", size=("num_records", len(self._sequence)))
        self._loader.load_state(state["loader"])
        self.position = state["batches"]

    def seek(self, position: int) -> None:
        """Continue at a batch, replaying the ends of earlier epochs."""
        self.position = position
        while self._loader.epochs_ended < self._sampler.epoch(self.position):
            self._loader.end_epoch()

    def close(self) -> None:
        """Stop the workers."""
        self._close_items()
        self._loader.close()

    def _close_items(self) -> None:
        if self._items is not None:
            self._items.close()
        self._items = None

    def _open_items(self) -> Generator[Any, None, None]:
        epoch = self._loader.epochs_ended
        stop = self.position
        while self._sampler.epoch(stop) == epoch:
            stop += 1
        indices = np.concatenate(list(self._sampler.batches(self.position, stop)))
        return self._loader.read_items(indices)


def as_sequence(data: Any) -> SequenceAdapter | None:
    """Return a Sequence as a `SequenceAdapter`; None for other kinds of data."""
    if isinstance(data, SequenceAdapter):
        return data
    kinds = tuple(
        getattr(keras.utils, name)
        for name in ("Sequence", "PyDataset")
        if hasattr(keras.utils, name)
    )
    if not isinstance(data, kinds):
        return None
    if len(data) == 0:
        raise DataError(f"{type(data).__name__} is empty: its length is 0 batches.")
    return SequenceAdapter(data)


def make_loader(data: Any, adapter: SequenceAdapter, settings: DataSettings) -> SequenceLoader:
    """Return the loader that prepares a Sequence's items.

    Args:
        data: Result of the trial; a `SequenceAdapter` has its own settings.
        adapter: The same as an adapter.
        settings: Used for a plain Sequence.
    """
    source = adapter if data is adapter else settings.options
    return SequenceLoader(
        adapter.sequence,
        workers=source.workers,
        use_multiprocessing=source.use_multiprocessing,
        max_queue_size=source.max_queue_size,
        seed=settings.seed,
    )
