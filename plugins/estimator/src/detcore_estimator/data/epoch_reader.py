"""Read a dataset epoch by epoch, and resume in the middle of one."""

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

    Each shuffle of the dataset counts its starts, and draws the seeds of the next epoch by that
    count. An iterator's state contains the counts of those shuffles that still have records to
    yield when it is saved. If these are not all shuffles, the state is not used: as many epochs as
    before are begun, and the batches of the current one are read again.

    Args:
        holder: The dataset.
        pipeline: Its known properties.

    Attributes:
        element: Tensors of the next batch.
        is_begun: Whether there is an iterator with batches left.
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
        """Make the dataset, as if it had never been read."""
        self._holder.make(session)
        self.is_begun = False
        self._is_at_end = False

    def close(self) -> None:
        """Let go of everything before the session is closed."""
        self._main.destroy()
        self._holder.destroy()

    def begin_epoch(self) -> None:
        """Begin the next epoch.

        Raises:
            DataError: If the last one was longer than `end_epoch` said.
        """
        if self._is_at_end:
            # A cache is complete, and a generator is over, only once the end was read.
            self._is_at_end = False
            left = self._main.read()
            if left:
                raise DataError(
                    f"the training data has {left} batches more than TensorFlow says it has.\n"
                    "Give the right number to tf.data.experimental.assert_cardinality."
                )
        self._main.begin()
        self.is_begun = True

    def end_epoch(self) -> None:
        """Note that all batches of the epoch were read, though not its end."""
        self.is_begun = False
        self._is_at_end = True

    def save(self, directory: Path) -> dict[str, Any]:
        """Write the iterator's state into a folder, if that is possible and sufficient.

        Args:
            directory: Folder of the checkpoint.

        Returns:
            State for `restore`; can be written as JSON.
        """
        pipeline = self._pipeline
        if pipeline.calls_python:
            # TensorFlow only notices while the part that calls Python is being read.
            self._warn_of_replay("its functions call Python")
        elif pipeline.has_random_functions:
            self._warn_of_replay("its functions draw random numbers")
        elif pipeline.has_nested_datasets:
            self._warn_of_replay("its functions or elements contain datasets")
        by_state = not (self._must_replay or pipeline.has_cache or pipeline.has_shuffling_functions)
        if by_state:
            if not self.is_begun:
                # As the next step would. The state of a new iterator is short.
                self.begin_epoch()
            by_state = self._save_iterator(directory / _STATE_FILE)
        return {"iterator": by_state, "replay": self._must_replay}

    def restore(self, directory: Path, state: Mapping[str, Any], epoch: int, cursor: int) -> bool:
        """Go to a position; the dataset has just been opened.

        Args:
            directory: Where `save` wrote.
            state: Result of `save`.
            epoch: Epochs that are over.
            cursor: Batches of the current epoch that were read.

        Returns:
            Whether batches had to be read again.

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
        """Read as many batches, over epochs of unknown length; the dataset has just been opened.

        Returns:
            Epochs that are over, and batches of the current one that were read.

        Raises:
            DataError: If an epoch has no batch.
        """
        epoch, left = 0, position
        while True:
            self._main.begin()
            done = self._main.read(left)
            if done == left:
                self.is_begun = True
                return epoch, done
            if not done:
                raise DataError("the training data is empty: its tf.data.Dataset has 0 batches.")
            epoch, left = epoch + 1, left - done

    def _save_iterator(self, prefix: Path) -> bool:
        """Return whether the state was written and contains the counts of all shuffles."""
        try:
            self._main.save(prefix)
        except tf.errors.FailedPreconditionError as error:
            self._must_replay = True
            self._warn_of_replay(_reason(error))
        else:
            if count_shuffles(prefix) >= self._pipeline.num_shuffles:
                return True
        for left_over in prefix.parent.glob(f"{prefix.name}*"):
            left_over.unlink()
        return False

    def seek(self, epoch: int, cursor: int) -> None:
        """Go to a position without a saved state; the dataset has just been opened.

        Reads as little as possible: all batches if parts of the pipeline have state; the first
        epoch if it fills a cache; otherwise only the batches of the current epoch.

        Raises:
            DataError: If the dataset has fewer batches.
        """
        every = self._must_replay or self._pipeline.seeds_drawn == "later"
        whole = epoch if every else min(epoch, int(self._pipeline.has_cache))
        for _ in range(whole):
            self._main.begin()
            self._main.read()
        for _ in range(epoch - whole):  # only draw their seeds
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


def _reason(error: Any) -> str:
    lines: list[str] = [line for line in error.message.splitlines() if "stateful" in line]
    return lines[0].strip() if lines else str(error.message).strip()
