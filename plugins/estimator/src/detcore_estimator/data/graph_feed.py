"""Feed the training dataset of an Estimator trial inside a graph, with a resumable position."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from itertools import compress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy.typing as npt

from detcore.data import IdKind
from detcore.errors import (
    DataError,
    InvalidDataTypeError,
    InvalidExperimentError,
    LedgerError,
    describe,
)
from detcore_estimator.data.dataset_pipeline import derives_from, inspect_pipeline, tune_dataset
from detcore_estimator.data.epoch_reader import EpochReader
from detcore_estimator.data.graph_iterator import DatasetHolder
from detcore_estimator.data.record_ids import Census, content_hashes
from detcore_estimator.tensorflow_versions import tf, tf1

if TYPE_CHECKING:
    from detcore.data import LedgerWriter


_logger = logging.getLogger("detcore.estimator")


class GraphFeed:
    """Batches of a ``tf.data.Dataset`` inside a v1 graph.

    The batches are those of ``dataset.repeat()``. A checkpoint holds the iterator's state,
    including shuffle buffers. Pipelines whose state TensorFlow cannot save are replayed up to the
    position. So are pipelines with a ``cache()``, because their state would be the whole cache.

    Each epoch has a separate iterator. The state of an iterator of ``repeat()`` lacks the number of
    times that a shuffle was started if the shuffle is exhausted at that moment. Restored in a new
    process, later epochs would have another order. Only pipelines whose functions draw random
    numbers use ``repeat()``, because each new iterator would draw the same numbers again. These
    pipelines are always replayed.

    Create it under ``graph.as_default()``, after the dataset and before the model. It adds the same
    operations with and without a ledger, so that the seeds of later operations do not differ.

    Args:
        dataset: The batched training data, of the same graph.
        with_ledger: Whether the records' content hashes are needed.

    Attributes:
        features: Tensors of the next batch: the first part of a pair, or the whole element.
        labels: The second part of a pair, or None.
        record_ids: Hashes of the batch's records, ``(batch,), int64``; None without ledger.
        batches_per_epoch: None before `begin`, and for an endless dataset. If TensorFlow does not
            know it, None in the first epoch, and afterwards the length of the previous epoch.
        position: Batches fed, over all starts of the trial.

    Raises:
        LedgerError: If a ledger is requested, and the batches have no dense tensors.
    """

    def __init__(self, dataset: Any, *, with_ledger: bool) -> None:
        spec = dataset.element_spec
        is_pair = isinstance(spec, tuple) and len(spec) == 2
        none = type(tf.type_spec_from_value(None))
        is_there = [not isinstance(part, none) for part in tf.nest.flatten(spec)]
        if not all(is_there):
            # Iterators that can be saved do not support None.
            dataset = dataset.map(lambda *parts: tuple(compress(tf.nest.flatten(parts), is_there)))
        pipeline = inspect_pipeline(dataset)
        self._is_one_iterator = pipeline.has_random_functions
        self._has_chance = pipeline.has_random_functions and pipeline.has_parallel_functions
        dataset = tune_dataset(dataset, pipeline)
        with tf1.name_scope("detcore_data"), tf1.device("/cpu:0"):
            self._once = DatasetHolder(dataset, "detcore_data/once")
            source = dataset.repeat() if self._is_one_iterator else dataset
            self._reader = EpochReader(DatasetHolder(source, "detcore_data/training"), pipeline)
            self._census = Census(self._once)
            ids = content_hashes(self._reader.element)
        if with_ledger and ids is None:
            raise LedgerError(
                "data_ledger is on, but the batches of the tf.data.Dataset have no dense tensors.\n"
                "The data ledger identifies records by a hash of their dense parts.\n"
                "Set data_ledger: false."
            )
        element = self._reader.element
        if not all(is_there):
            parts_left = iter(element)
            element = tf.nest.map_structure(
                lambda part: None if isinstance(part, none) else next(parts_left), spec
            )
        self.features: Any = element[0] if is_pair else element
        self.labels: Any = element[1] if is_pair else None
        self.record_ids: Any = ids if with_ledger else None
        self.batches_per_epoch: int | None = None
        self.position = 0
        self._epoch = 0
        self._cursor = 0
        self._is_endless = False
        self._is_length_known = False

    def begin(self, session: Any) -> None:
        """Go to the first batch. Call it once per session, after tables were initialized.

        Raises:
            DataError: If the dataset is known to be empty.
        """
        self._once.make(session)
        num_batches = int(session.run(self._once.num_batches))
        if num_batches == 0:
            raise _empty_data_error()
        self._is_endless = num_batches == tf.data.INFINITE_CARDINALITY
        self._is_length_known = num_batches > 0
        if self._is_length_known:
            self.batches_per_epoch = num_batches
        if self._has_chance:
            _logger.warning(
                "parallel functions of the training data's tf.data pipeline draw random numbers. "
                "The numbers of a record differ from run to run and after a resume. Use "
                "tf.random.stateless_* with a seed from the record, or map without "
                "num_parallel_calls"
            )
        self._reader.open(session)
        self.position = self._epoch = self._cursor = 0

    def close(self) -> None:
        """Release buffers and threads. Call it once, before the session is closed."""
        self._reader.close()
        self._census.close()
        self._once.destroy()

    def ready(self, limit: int) -> int:
        """Return the number of steps that may run now. Begin the next epoch if it is due.

        Args:
            limit: Upper bound, >= 1.

        Returns:
            Between 1 and `limit`. If the length of an epoch is unknown, one of these steps may
            raise ``tf.errors.OutOfRangeError``: see `ended`.
        """
        if not self._reader.is_begun:
            self._reader.begin_epoch()
        if self._is_length_known and self.batches_per_epoch is not None:
            return min(limit, self.batches_per_epoch - self._cursor)
        return limit

    def start_over(self) -> None:
        """Begin an epoch for reads after the last step. Positions are meaningless afterwards."""
        self._reader.begin_epoch()

    def advance(self, count: int) -> None:
        """Record that `count` batches were trained on."""
        self.position += count
        self._cursor += count
        if self._is_length_known and self._cursor == self.batches_per_epoch:
            self._epoch += 1
            self._cursor = 0
            if not self._is_one_iterator:
                self._reader.end_epoch()

    def ended(self) -> None:
        """Record that a step found no batch, and begin the next epoch. Call `advance` first.

        Raises:
            DataError: If the epoch had no batch, or fewer batches than TensorFlow expects.
        """
        if self._cursor == 0:
            raise _empty_data_error()
        if self._is_endless or self._is_length_known or self._is_one_iterator:
            expected = f"{self.batches_per_epoch} batches" if self._is_length_known else "no end"
            raise DataError(
                f"the training data ended after {self._cursor} batches of epoch {self._epoch}, "
                f"but TensorFlow expects {expected}.\n"
                "A hook that runs parts of the model consumes batches that the steps then lack.\n"
                "A queue or an iterator that the model reads may have ended."
            )
        self.batches_per_epoch = self._cursor
        self._epoch += 1
        self._cursor = 0
        self._reader.begin_epoch()

    def save(self, directory: Path) -> dict[str, Any]:
        """Write the iterator's state into a directory, if the pipeline allows it.

        Args:
            directory: Directory of the checkpoint.

        Returns:
            JSON values for `restore`.
        """
        return {
            "kind": "tf.data",
            "num_batches": self.batches_per_epoch,
            "batches": self.position,
            "epoch": self._epoch,
            "cursor": self._cursor,
            **self._reader.save(directory),
        }

    def restore(self, directory: Path, state: Mapping[str, Any]) -> None:
        """Continue at the saved position, from the iterator's state or by replaying.

        Restore the states of Python's and NumPy's generators after this call, because a replay
        runs the data's Python code again.

        Args:
            directory: Directory of the checkpoint.
            state: Result of `save`.

        Raises:
            DataError: If the position is for other data.
        """
        self.begin(self._once.session)
        self._check_saved(state)
        position, epoch, cursor = state["batches"], state["epoch"], state["cursor"]
        started = time.monotonic()
        target = (0, position) if self._is_one_iterator else (epoch, cursor)
        if self._reader.restore(directory, state, *target):
            _logger.info(
                "replayed the training data's tf.data pipeline in %.1f s, to continue at batch %d",
                time.monotonic() - started,
                position,
            )
        self.position, self._epoch, self._cursor = position, epoch, cursor

    def go_to(self, position: int) -> None:
        """Continue at a batch that was reached with other shards of the data.

        Args:
            position: Batches fed to each worker.

        Raises:
            DataError: If the data is empty.
        """
        self.begin(self._once.session)
        if not position:
            return
        length = self.batches_per_epoch if self._is_length_known else None
        if self._is_one_iterator or self._is_endless:
            epoch, cursor = 0, position
            self._reader.seek(epoch, cursor)
        elif length is not None:
            epoch, cursor = divmod(position, length)
            self._reader.seek(epoch, cursor)
        else:
            epoch, cursor = self._reader.count_to(position)
        self.position, self._epoch, self._cursor = position, epoch, cursor

    def describe(self, ledger: LedgerWriter) -> None:
        """Declare content hashes as ids. Read the data once, to log all ids of an epoch.

        Raises:
            LedgerError: If the dataset has no end, and therefore no epochs.
        """
        if self._is_endless:
            raise LedgerError(
                "data_ledger is on, but the training dataset has no end. The ledger counts records "
                "per epoch.\n"
                "Remove repeat() from its input_fn, because a trial always repeats its data.\n"
                "Or set data_ledger: false."
            )
        ledger.describe(IdKind.CONTENT_HASH)
        if self._is_one_iterator:
            return  # Each epoch has different records.
        for ids in self._census.read():
            ledger.census(ids)

    def log(self, ledger: LedgerWriter, ids_of_steps: Sequence[npt.NDArray[Any]]) -> None:
        """Log the content hashes of the steps that the last `advance` counted."""
        epoch = self._epoch if self._cursor else self._epoch - 1
        first = self.position - len(ids_of_steps) + 1
        for step, ids in enumerate(ids_of_steps, first):
            ledger.log(step, epoch, ids)

    def _check_saved(self, state: Mapping[str, Any]) -> None:
        is_other = self._is_length_known and state.get("num_batches") != self.batches_per_epoch
        if state.get("kind") != "tf.data" or is_other:
            raise DataError(
                f"the checkpoint's data position is for {state.get('kind')} with "
                f"{state.get('num_batches')} batches, but the trial now has tf.data with "
                f"{self.batches_per_epoch}.\n"
                "Training can only continue with the same data.\n"
                "Restore the data, or start a new experiment."
            )
        if self.batches_per_epoch is None:
            self.batches_per_epoch = state["num_batches"]


def _empty_data_error() -> DataError:
    return DataError(
        "the training data is empty: its tf.data.Dataset has 0 batches.\n"
        "Check its filters. With drop_remainder=True, a batch size larger than the data also "
        "leaves no batch."
    )


def check_dataset(dataset: Any, wrapped: Iterable[Any], role: str, *, is_managed: bool) -> None:
    """Raise if an input function returned no dataset, or a dataset that was not wrapped.

    Only a session can tell whether a dataset is empty; see `GraphFeed.begin`.

    Args:
        dataset: Result of the input function.
        wrapped: The datasets that ``context.wrap_dataset`` returned.
        role: "training" or "validation", for messages.
        is_managed: Whether datasets must be wrapped.

    Raises:
        InvalidDataTypeError: If the result is not a dataset, or its elements are not features and
            labels.
        InvalidExperimentError: If the dataset does not come from a wrapped dataset.
    """
    if not isinstance(dataset, tf.data.Dataset):
        raise InvalidDataTypeError(
            f"the {role} input_fn returned {describe(dataset)}, not a tf.data.Dataset.\n"
            "A trial saves its position in the data, but plain tensors and iterators have no "
            "position.\n"
            "Return a dataset with elements (features, labels)."
        )
    spec = dataset.element_spec
    if isinstance(spec, tuple) and not hasattr(spec, "_fields") and len(spec) != 2:
        raise InvalidDataTypeError(
            f"the {role} input_fn returned a tf.data.Dataset whose elements are tuples of "
            f"{len(spec)} parts.\nThe elements must be pairs (features, labels), or features alone."
        )
    if is_managed and not derives_from(dataset, wrapped):
        raise InvalidExperimentError(
            f"the {role} input_fn returned a tf.data.Dataset that was not wrapped.\n"
            "detcore shards wrapped datasets between the workers.\n"
            "Wrap it right after it is created: dataset = self.context.wrap_dataset(dataset)"
        )
