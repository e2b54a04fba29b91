"""Read a dataset epoch by epoch, and resume in the middle of an epoch."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from detcore.errors import DataError
from detcore_estimator.data.dataset_pipeline import Pipeline
from detcore_estimator.data.graph_iterator import DatasetHolder, GraphIterator, count_shuffles
from detcore_estimator.tensorflow_versions import tf

_logger = logging.getLogger("detcore.estimator")

_STATE_FILE = "data-iterator"


class EpochReader:
    """One iterator for each epoch of a dataset, with a position that can be saved.

    Each shuffle of the dataset counts its starts, and draws the seeds of the next epoch from this
    count. An iterator's state contains only the counts of shuffles that still have records to
    yield. If a count is missing, the state is not used. Instead, the same number of epochs is
    started, and the batches of the current epoch are read again.

    Args:
        holder: The dataset.
        pipeline: The known properties of the dataset.

    Attributes:
        element: Tensors of the next batch.
        is_begun: Whether the current epoch has batches left.
    """

    def __init__(self, holder: DatasetHolder, pipeline: Pipeline) -> None:
        self._holder = holder
        self._pipeline = pipeline
        self._main = GraphIterator(holder)
        self._must_replay = (
            pipeline.calls_python or pipeline.has_random_functions or pipeline.has_nested_datasets
        )
        self._has_warned = False
        self._is_at_end = False
        self.element = self._main.element
        self.is_begun = False

    def open(self, session: Any) -> None:
        """Create the dataset, as if it had never been read."""
        self._holder.make(session)
        self.is_begun = False
        self._is_at_end = False

    def close(self) -> None:
        """Release all resources. Call it before the session is closed."""
        self._main.destroy()
        self._holder.destroy()

    def begin_epoch(self) -> None:
        """Begin the next epoch.

        Raises:
            DataError: If the previous epoch has more batches than expected.
        """
        if self._is_at_end:
            # A cache is complete, and a generator ends, only when the end was read.
            self._is_at_end = False
            num_left = self._main.read()
            if num_left:
                raise DataError(
                    f"the training data has {num_left} batches more than TensorFlow expects.\n"
                    "Pass the right number to tf.data.experimental.assert_cardinality."
                )
        self._main.begin()
        self.is_begun = True

    def end_epoch(self) -> None:
        """Record that all batches of the epoch were read, but not its end."""
        self.is_begun = False
        self._is_at_end = True

    def save(self, directory: Path) -> dict[str, Any]:
        """Write the iterator's state into a directory, if this is possible and sufficient.

        Args:
            directory: Directory of the checkpoint.

        Returns:
            JSON values for `restore`.
        """
        pipeline = self._pipeline
        if pipeline.calls_python:
            # TensorFlow detects Python calls only while that part is being read.
            self._warn_of_replay("its functions call Python")
        elif pipeline.has_random_functions:
            self._warn_of_replay("its functions draw random numbers")
        elif pipeline.has_nested_datasets:
            self._warn_of_replay("its functions or elements contain datasets")
        by_state = not (self._must_replay or pipeline.has_cache or pipeline.has_shuffling_functions)
        if by_state:
            if not self.is_begun:
                # Like the next step. The state of a new iterator is short.
                self.begin_epoch()
            by_state = self._save_iterator(directory / _STATE_FILE)
        return {"iterator": by_state, "replay": self._must_replay}

    def restore(self, directory: Path, state: Mapping[str, Any], epoch: int, cursor: int) -> bool:
        """Go to a position. Call it right after `open`.

        Args:
            directory: Directory that `save` wrote into.
            state: Result of `save`.
            epoch: Number of completed epochs.
            cursor: Batches of the current epoch that were read.

        Returns:
            Whether batches were read again.

        Raises:
            DataError: If the dataset has fewer batches.
        """
        self._must_replay = self._must_replay or state["replay"]
        if not state["iterator"]:
            self.seek(epoch, cursor)
            return True
        self._main.begin()
        self._main.restore(directory / _STATE_FILE)
        self.is_begun = True
        return False

    def count_to(self, position: int) -> tuple[int, int]:
        """Read this number of batches, over epochs of unknown length. Call it right after `open`.

        Returns:
            The number of completed epochs, and the batches read of the current epoch.

        Raises:
            DataError: If an epoch has no batch.
        """
        epoch, num_left = 0, position
        while True:
            self._main.begin()
            num_read = self._main.read(num_left)
            if num_read == num_left:
                self.is_begun = True
                return epoch, num_read
            if not num_read:
                raise DataError("the training data is empty: its tf.data.Dataset has 0 batches.")
            epoch, num_left = epoch + 1, num_left - num_read

    def _save_iterator(self, prefix: Path) -> bool:
        """Return whether the state was written and contains the counts of all shuffles."""
        try:
            self._main.save(prefix)
        except tf.errors.FailedPreconditionError as error:
            self._must_replay = True
            self._warn_of_replay(_extract_reason(error))
        else:
            if count_shuffles(prefix) >= self._pipeline.num_shuffles:
                return True
        for left_over in prefix.parent.glob(f"{prefix.name}*"):
            left_over.unlink()
        return False

    def seek(self, epoch: int, cursor: int) -> None:
        """Go to a position without a saved state. Call it right after `open`.

        Reads as few batches as possible: all batches if parts of the pipeline have state, the first
        epoch if it fills a cache, and otherwise only the batches of the current epoch.

        Raises:
            DataError: If the dataset has fewer batches.
        """
        must_read_all = self._must_replay or self._pipeline.seeds_drawn == "later"
        full_epochs = epoch if must_read_all else min(epoch, int(self._pipeline.has_cache))
        for _ in range(full_epochs):
            self._main.begin()
            self._main.read()
        for _ in range(epoch - full_epochs):  # only draw their seeds
            self._main.begin()
            if self._pipeline.seeds_drawn == "at first read":
                self._main.skip(1)
        if cursor:
            self._main.begin()
            self._main.skip(cursor)
            self.is_begun = True

    def _warn_of_replay(self, reason: str) -> None:
        if self._has_warned:
            return
        self._has_warned = True
        _logger.warning(
            "the state of the training data's tf.data pipeline cannot be saved (%s); a "
            "resumed run will read it again from the start, up to its position",
            reason,
        )


def _extract_reason(error: Any) -> str:
    lines: list[str] = [line for line in error.message.splitlines() if "stateful" in line]
    return lines[0].strip() if lines else str(error.message).strip()
