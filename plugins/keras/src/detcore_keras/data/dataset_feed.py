"""Use ``tf.data`` as training data: the wrap mark, and a feed with resumable iterators."""

from __future__ import annotations

import logging
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from detcore.data import IdKind
from detcore.errors import DataError, InvalidExperimentError, LedgerError
from detcore_keras.backends.backend import RECORD_COUNT, RECORD_IDS
from detcore_keras.backends.graph_batches import batch_records, without_none_specs
from detcore_keras.data.feed import BatchIdentity, Feed, check_saved
from detcore_keras.state.random_generators import preserved_rng

if TYPE_CHECKING:
    from detcore.data import LedgerWriter


_logger = logging.getLogger("detcore.keras")

_ITERATOR = "data-iterator"
# Kinds of datasets whose iterators create those of their inputs eagerly (TensorFlow 2.15 to 2.21).
_EAGER_KINDS = frozenset(
    {
        "AssertCardinality",
        "Batch",
        "Filter",
        "FlatMap",
        "Interleave",
        "Map",
        "Options",
        "PaddedBatch",
        "ParallelBatch",
        "ParallelInterleave",
        "ParallelMap",
        "Prefetch",
        "Shard",
        "Skip",
        "Take",
        "Unbatch",
        "Zip",
    }
)
_AHEAD = 8


class DatasetFeed(Feed):
    """Batches of a ``tf.data.Dataset``, with one iterator per epoch.

    A checkpoint holds the iterator's state, including shuffle buffers. Pipelines whose state
    TensorFlow cannot save are replayed up to the position. So are pipelines with a ``cache()``,
    because their state would be the whole cache.

    This class repeats the dataset itself instead of using ``repeat()``. An iterator's state lacks
    the number of times that a shuffled dataset was started if the shuffle is exhausted at that
    moment (a prefetch that runs ahead is enough). Restored in a new process, later epochs would
    have another order. Observed in TensorFlow 2.15 and 2.21; see `_restore_iterator`.

    Args:
        dataset: The training data, batched.
        with_ledger: Whether the records' content hashes are needed.
    """

    in_graph = True

    def __init__(self, dataset: Any, *, with_ledger: bool) -> None:
        cardinality = int(dataset.cardinality())
        self._dataset = _disable_autotuning(dataset)
        self._is_endless = cardinality == tf.data.INFINITE_CARDINALITY
        self.batches_per_epoch = cardinality if cardinality >= 0 else None
        parts = _list_kinds(dataset)
        self._has_cache = any("Cache" in part for part in parts)
        self._must_replay = _begins_a_shuffle_late(dataset)
        self._iterator: Any = None
        self._epoch = 0
        self._cursor = 0
        self.element_spec = without_none_specs(dataset.element_spec)

        def split(data: Any) -> tuple[Mapping[str, Any], Any]:
            if not with_ledger:
                return {RECORD_COUNT: batch_records(data)}, data
            ids = _content_hashes(data)
            return {RECORD_IDS: ids, RECORD_COUNT: tf.size(ids)}, data

        self.split = split
        # A batch that was read ahead, and the files of the iterator's state before it.
        self._ahead: Any = None
        self._files_before: Mapping[str, bytes] = {}

    def next_block(self, limit: int) -> tuple[Any, int]:
        """Return the epoch's iterator, or one batch while the length of an epoch is unknown."""
        if self._ahead is not None:
            return self._ahead, 1
        if self._iterator is None:
            self._iterator = iter(self._dataset)
        if self._is_endless:
            return self._iterator, limit
        if self.batches_per_epoch is None:
            return self._pull_batch()
        return self._iterator, min(limit, self.batches_per_epoch - self._cursor)

    def peek_block(self) -> Any:
        """Read a batch ahead. It becomes the next block; `save` keeps the position before it."""
        if self._ahead is None:
            if self._cursor:
                with tempfile.TemporaryDirectory() as scratch:
                    self._save_iterator(Path(scratch))
                    self._files_before = {p.name: p.read_bytes() for p in Path(scratch).iterdir()}
            inputs, _ = self.next_block(1)
            self._ahead = self.fetch_batch(inputs, 0)
        return self._ahead

    def fetch_batch(self, inputs: Any, index: Any) -> Any:
        """Take the iterator's next batch; runs in the graph."""
        if not isinstance(inputs, tf.data.Iterator):
            return inputs
        return next(inputs) if tf.executing_eagerly() else inputs.get_next()

    def advance(self, count: int, outputs: Mapping[str, Any]) -> None:
        """Record that `count` batches were trained on."""
        self._ahead, self._files_before = None, {}
        self.position += count
        if RECORD_COUNT not in outputs:
            self.records = None
        elif self.records is not None:
            self.records += int(np.sum(outputs[RECORD_COUNT]))
        self._cursor += count
        if self._cursor == self.batches_per_epoch:
            self._end_epoch()

    def describe_records(self, ledger: LedgerWriter) -> None:
        """Declare content hashes as ids; read the data once, to log all ids of an epoch."""
        ledger.describe(IdKind.CONTENT_HASH)
        if self._is_endless:
            return
        with preserved_rng():
            for ids in self._dataset.map(lambda *batch: _content_hashes(batch)):
                ledger.census(ids.numpy())

    def log_records(
        self, ledger: LedgerWriter, outputs: Mapping[str, npt.NDArray[Any]], count: int
    ) -> None:
        """Log the content hashes of the records."""
        ends = np.cumsum(outputs[RECORD_COUNT].reshape(-1))
        ids = outputs[RECORD_IDS].reshape(-1)
        epoch = self._epoch if self._cursor else self._epoch - 1
        ledger.log_batches(self.position - count + 1, epoch, ends, ids)

    def identify_batches(self, inputs: Any, indices: Sequence[int]) -> Sequence[BatchIdentity]:
        """Return neither ids nor arrays, because batches exist only in the graph."""
        return [(None, ()) for _ in indices]

    def save(self, directory: Path) -> dict[str, Any]:
        """Write the iterator's state, if the pipeline allows it."""
        by_state = self._cursor > 0 and self._save_iterator(directory)
        return {
            "kind": "tf.data",
            "num_batches": self.batches_per_epoch,
            "batches": self.position,
            "epoch": self._epoch,
            "cursor": self._cursor,
            "iterator": by_state,
            "replay": self._must_replay,
        }

    def restore(self, directory: Path, state: Mapping[str, Any]) -> None:
        """Continue at the saved position, from the iterator's state or by replaying."""
        if self.batches_per_epoch is None:
            self.batches_per_epoch = state["num_batches"]
        check_saved(state, kind="tf.data", size=("num_batches", self.batches_per_epoch))
        self._ahead = None
        self._must_replay = state["replay"]
        self.position, target = state["batches"], (state["epoch"], state["cursor"])
        started = time.monotonic()
        if state["iterator"]:
            self._begin_epochs(target[0])
            self._restore_iterator(directory)
        else:
            self._replay_epochs(*target)
            _logger.info(
                "replayed the training data's tf.data pipeline in %.1f s, to continue at batch %d",
                time.monotonic() - started,
                self.position,
            )
        self._epoch, self._cursor = target

    def seek(self, position: int) -> None:
        """Continue at a batch, counted in this worker's own epochs, by reading up to it."""
        self._ahead = None
        self.position = position
        if self._is_endless:
            self._replay_epochs(0, position)
            self._cursor = position
            return
        epochs_read = 0
        if self.batches_per_epoch is None:
            self.batches_per_epoch = self._read_first_epoch(position)
            epochs_read = 1
        if self.batches_per_epoch is None:
            self._cursor = position
            return
        self._epoch, self._cursor = divmod(position, self.batches_per_epoch)
        self._replay_epochs(self._epoch - epochs_read, self._cursor)

    def close(self) -> None:
        """Release the iterator and its buffers."""
        self._iterator = self._ahead = None
        self._files_before = {}

    def _pull_batch(self) -> tuple[Any, int]:
        """Read one batch of an epoch of unknown length, which may have ended."""
        try:
            return next(self._iterator), 1
        except StopIteration:
            if self._cursor == 0:
                raise
            self.batches_per_epoch = self._cursor
            self._end_epoch()
            return self.next_block(1)

    def _read_first_epoch(self, limit: int) -> int | None:
        """Count the batches of an epoch; stop after `limit` of them and return None."""
        iterator = iter(self._dataset)
        for count in range(limit):
            if not iterator.get_next_as_optional().has_value():
                if count == 0:
                    raise DataError("the training data is empty: it ended before the first batch.")
                return count
        self._iterator = iterator
        return None

    def _end_epoch(self) -> None:
        self._epoch += 1
        self._cursor = 0
        self._iterator = None

    def _begin_epochs(self, count: int) -> None:
        """Draw the shuffle seeds of `count` epochs. Each new iterator draws the next seeds."""
        for _ in range(count):
            iter(self._dataset)

    def _save_iterator(self, directory: Path) -> bool:
        if self._must_replay or self._has_cache:
            return False
        if self._ahead is not None:
            for name, content in self._files_before.items():
                (directory / name).write_bytes(content)
            return True
        try:
            tf.train.Checkpoint(iterator=self._iterator).write(str(directory / _ITERATOR))
        except tf.errors.FailedPreconditionError as error:
            # Raised for stateful parts that TensorFlow cannot save, such as Python functions.
            self._must_replay = True
            reason = error.message.rpartition("}}")[2].partition("[Op")[0].strip()
            _logger.warning(
                "the state of the training data's tf.data pipeline cannot be saved (%s); a "
                "resumed run will read it again from the start, up to its position",
                reason,
            )
            for left_over in directory.glob(f"{_ITERATOR}*"):
                left_over.unlink()
            return False
        return True

    def _restore_iterator(self, directory: Path) -> None:
        """Restore the iterator of the current epoch, and the seeds of later epochs.

        Restoring an iterator draws new seeds, and corrects them only for shuffles that still had
        records to yield. The state of a fresh iterator contains the right seeds for all shuffles.
        It is saved first, and restored afterwards into an iterator that is never read.
        """
        self._iterator = iter(self._dataset)
        with tempfile.TemporaryDirectory() as scratch:
            fresh_prefix = f"{scratch}/fresh"
            tf.train.Checkpoint(iterator=self._iterator).write(fresh_prefix)
            checkpoint = tf.train.Checkpoint(iterator=self._iterator)
            checkpoint.read(str(directory / _ITERATOR)).assert_consumed()
            tf.train.Checkpoint(iterator=iter(self._dataset)).read(fresh_prefix).assert_consumed()

    def _replay_epochs(self, epoch: int, cursor: int) -> None:
        """Read as few batches again as possible.

        These are all batches if random parts of the pipeline have state, the first epoch if it
        fills a cache, and otherwise only the batches of the current epoch.
        """
        length = self.batches_per_epoch or 0
        full_epochs = epoch if self._must_replay else min(epoch, int(self._has_cache))
        for _ in range(full_epochs):
            _skip_batches(iter(self._dataset), tf.constant(length, tf.int64))
        self._begin_epochs(epoch - full_epochs)
        if cursor:
            self._iterator = iter(self._dataset)
            _skip_batches(self._iterator, tf.constant(cursor, tf.int64))


@tf.function(autograph=False, reduce_retracing=True)  # type: ignore[untyped-decorator]
def _skip_batches(iterator: Any, count: Any) -> None:
    """Read batches in a graph and drop them."""

    def body(done: Any) -> Any:
        batch = tf.nest.flatten(iterator.get_next(), expand_composites=True)
        with tf.control_dependencies(batch):
            return done + 1

    tf.while_loop(lambda done: done < count, body, (tf.constant(0, tf.int64),))


def _disable_autotuning(dataset: Any) -> Any:
    """Disable tf.data's autotuning if the pipeline has no parallel parts to tune.

    Autotuning starts a thread for each iterator and waits 15 ms for it at the end, which matters
    for short epochs. The user's own options take precedence.
    """
    parallel = any("Parallel" in kind for kind in _list_kinds(dataset))
    if parallel or dataset.options().autotune.enabled is not None:
        return dataset
    options = tf.data.Options()
    options.autotune.enabled = False
    if "Prefetch" not in type(dataset).__name__:
        # Autotuning would add this prefetch, which prepares batches in parallel with training.
        dataset = dataset.prefetch(_AHEAD)
    return dataset.with_options(options)


def _list_kinds(dataset: Any) -> set[str]:
    """Return the kinds of a dataset and of all its inputs."""
    kinds = {type(dataset).__name__}
    for source in dataset._inputs():
        kinds |= _list_kinds(source)
    return kinds


def _begins_a_shuffle_late(dataset: Any) -> bool:
    """Whether a shuffle may draw its seeds after the iterator was created.

    The seeds of earlier epochs can then be drawn only by reading these epochs, and the state of a
    fresh iterator does not contain all seeds. This happens for nested shuffles, for ``repeat()``,
    and for datasets in functions or elements, whose shuffles are invisible.
    """
    if _holds_datasets(dataset):
        return True
    is_eager = any(f"_{kind}Dataset" == type(dataset).__name__ for kind in _EAGER_KINDS)
    sources = dataset._inputs()
    if not is_eager and any("Shuffle" in kind for s in sources for kind in _list_kinds(s)):
        return True
    return any(_begins_a_shuffle_late(source) for source in sources)


def _holds_datasets(part: Any) -> bool:
    """Whether the functions of a dataset capture datasets, or a source has datasets as elements."""
    specs = tf.nest.flatten(part.element_spec) if not part._inputs() else []
    return any(isinstance(spec, tf.data.DatasetSpec) for spec in specs) or any(
        tensor.dtype == tf.variant
        for wrapper in part._functions()
        for tensor in wrapper.function.captured_inputs
    )


def check_dataset(
    dataset: Any, wrapped: Iterable[Any], role: str, *, may_be_empty: bool = False
) -> None:
    """Raise if a dataset was not wrapped, or is known to be empty.

    Args:
        dataset: Result of the loader.
        wrapped: The datasets that ``context.wrap_dataset`` returned.
        role: "training" or "validation", for messages.
        may_be_empty: Whether the dataset may have no batches because other workers have some.

    Raises:
        InvalidExperimentError: If the dataset does not come from a wrapped dataset.
        DataError: If the dataset has no batches.
    """
    if not is_wrapped(dataset, wrapped):
        raise InvalidExperimentError(
            f"build_{role}_data_loader returned a tf.data.Dataset that was not wrapped.\n"
            "detcore shards wrapped datasets between the workers.\n"
            "Wrap it right after it is created: dataset = self.context.wrap_dataset(dataset)"
        )
    if int(dataset.cardinality()) == 0 and not may_be_empty:
        raise DataError(
            f"build_{role}_data_loader returned an empty tf.data.Dataset: it has 0 batches.\n"
            "Check its filters. With drop_remainder=True, a batch size larger than the data also "
            "leaves no batch."
        )


def count_batches(dataset: Any) -> Any:
    """Return a dataset whose number of batches is known. Reads the data once if it is not.

    Raises:
        DataError: If the dataset is endless.
    """
    cardinality = int(dataset.cardinality())
    if cardinality == tf.data.INFINITE_CARDINALITY:
        raise DataError(
            "the training data is a tf.data.Dataset without an end, so the length of an epoch is "
            "unknown.\nPass steps_per_epoch, or remove repeat()."
        )
    if cardinality >= 0:
        return dataset
    with preserved_rng():
        count = dataset.reduce(np.int64(0), lambda number, *_: number + 1)
    return dataset.apply(tf.data.experimental.assert_cardinality(count))


def is_wrapped(dataset: Any, wrapped: Iterable[Any]) -> bool:
    """Whether a dataset was wrapped, or was derived from a wrapped dataset."""
    wrapped_ids = {id(member) for member in wrapped}
    pending = [dataset]
    while pending:
        current = pending.pop()
        if id(current) in wrapped_ids:
            return True
        pending.extend(current._inputs())
    return False


def _content_hashes(batch: Any) -> Any:
    """Return a 64-bit hash of each record, ``(batch,), int64``; runs in the graph."""
    tensors = [part for part in tf.nest.flatten(batch) if isinstance(part, tf.Tensor)]
    parts = [part for part in tensors if part.shape.rank != 0]
    if not parts:
        raise LedgerError(
            "data_ledger is on, but the batches of the tf.data.Dataset have no dense tensors.\n"
            "The data ledger identifies records by a hash of their dense parts.\n"
            "Set data_ledger: false."
        )
    hashes = tf.concat([tf.fingerprint(part) for part in parts], axis=1)
    return tf.bitcast(tf.fingerprint(hashes), tf.int64)
