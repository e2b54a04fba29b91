"""Feed training data of several kinds, batch by batch from any position."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from detcore.data import IdKind, IndexSampler
from detcore.errors import CheckFailedError, DataError, InvalidDataTypeError, describe
from detcore_keras.data.sequence_loader import SequenceLoader
from detcore_keras.frameworks import keras, tf
from detcore_keras.keras_context import FitOptions, SequenceAdapter
from detcore_keras.state.random_state import preserved_rng

if TYPE_CHECKING:
    from detcore.data import LedgerWriter


# Batches of arrays are gathered and passed to TensorFlow in blocks of at most this size.
_BLOCK_BYTES = 64 << 20
# The records of a smaller block are kept beside its tensors, for digests of its batches.
_KEPT_BYTES = 4 << 20

_ACCEPTED = (
    "Accepted: x alone, or a tuple (x,), (x, y) or (x, y, sample_weight), of NumPy arrays or of "
    "lists or dicts of arrays;\na tf.data.Dataset of batches, wrapped with context.wrap_dataset; a "
    "keras.utils.Sequence (PyDataset); a detcore_keras.SequenceAdapter."
)


Split: TypeAlias = Callable[[Any], tuple[Mapping[str, Any], Any]]
# The record ids of a batch, and its arrays; None and none where they are not known.
Identified: TypeAlias = tuple[npt.NDArray[np.int64] | None, Sequence[npt.NDArray[Any]]]
# Key under which a step returns the number of records in its batch.
RECORD_COUNT = "detcore/record_count"


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
    inputs_spec: Any
    split: Split | None
    position: int
    records: int | None
    shared_records: int | None

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
        """Release workers and memory."""


class ArrayFeed:
    """Batches of arrays in an order that is computed from seed and epoch, never stored.

    NumPy gathers the records block by block, so the arrays (which may be memory-mapped) are never
    copied as a whole.

    Args:
        arrays: x alone, ``(x, y)`` or ``(x, y, sample_weight)``; nested tuples and dicts of arrays.
        sampler: Selects the records of each batch.
    """

    in_graph = True
    split: Split | None = None

    def __init__(self, arrays: Any, sampler: IndexSampler) -> None:
        self._arrays: list[npt.NDArray[Any]] = leaves(arrays)
        self._structure = arrays
        self._sampler = sampler
        self.batches_per_epoch: int | None = sampler.batches_per_epoch
        self.shared_records: int | None = sampler.num_records
        specs = [tf.TensorSpec((None, *a.shape[1:]), _dtype(a)) for a in self._arrays]
        self.element_spec = packed_as(arrays, specs)
        self.inputs_spec = (tuple(specs), tf.TensorSpec((None,), tf.int32))
        self.position = 0
        self.records: int | None = 0
        # Of the block: the records, the bounds of the batches in them, and their epochs.
        self._rows: npt.NDArray[np.int64] = np.zeros(0, np.int64)
        self._bounds: npt.NDArray[np.int32] = np.zeros(1, np.int32)
        self._epochs: npt.NDArray[np.int64] = np.zeros(0, np.int64)
        self._kept: list[npt.NDArray[Any]] | None = None
        self._done = 0  # batches of the block that were trained on
        record_bytes = sum(a[:1].nbytes for a in self._arrays)
        batch_bytes = max(1, record_bytes * len(sampler.batch(0)))
        self._block_batches = max(1, _BLOCK_BYTES // batch_bytes)

    def block(self, limit: int) -> tuple[Any, int]:
        """Gather the records of the next batches."""
        count = min(limit, self._block_batches)
        rows, ends, self._epochs = self._sampler.joined_batches(
            self.position, self.position + count
        )
        self._bounds = np.zeros(count + 1, np.int32)
        self._bounds[1:] = ends
        self._rows, self._done, self._kept = rows, 0, None
        gathered = [array[rows] for array in self._arrays]
        if sum(array.nbytes for array in gathered) <= _KEPT_BYTES:
            self._kept = gathered
        tensors = tuple(map(floats_as_keras, gathered))
        return (tensors, tf.convert_to_tensor(self._bounds)), count

    def peek(self) -> Any:
        """Gather the records of the next batch."""
        return self.block(1)[0]

    def fetch(self, inputs: Any, index: Any) -> Any:
        """Slice one batch out of the block; runs in the graph."""
        tensors, offsets = inputs
        start, stop = offsets[index], offsets[index + 1]
        return packed_as(self._structure, [tensor[start:stop] for tensor in tensors])

    def advance(self, count: int, outputs: Mapping[str, Any]) -> None:
        """Record that `count` batches of the block were trained on."""
        self.position += count
        done, self._done = self._done, self._done + count
        self.records = (self.records or 0) + int(self._bounds[self._done] - self._bounds[done])

    def describe(self, ledger: LedgerWriter) -> None:
        """Declare that ids are the indices of records."""
        ledger.describe(IdKind.RECORD_INDEX, num_records=self._sampler.num_records)

    def log(
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

    def identify(self, inputs: Any, indices: range) -> Sequence[Identified]:
        """Return the indices of the records of batches, and their values."""
        ends = self._bounds[self._done :].tolist()
        found: list[Identified] = []
        for each in [slice(ends[index], ends[index + 1]) for index in indices]:
            mine = self._rows[each]
            if self._kept is not None:
                found.append((mine, [array[each] for array in self._kept]))
            else:
                # Slices of the tensors would take ten times as long, array[mine] three times.
                found.append((mine, [array.take(mine, axis=0) for array in self._arrays]))
        return found

    def save(self, directory: Path) -> dict[str, Any]:
        """Return the position; there are no files."""
        return {"kind": "arrays", "num_records": len(self._arrays[0]), "batches": self.position}

    def restore(self, directory: Path, state: Mapping[str, Any]) -> None:
        """Continue at the saved position."""
        check_saved(state, kind="arrays", size=("num_records", len(self._arrays[0])))
        self.position = state["batches"]

    def seek(self, position: int) -> None:
        """Continue at a batch: the order is computed for any number of workers."""
        self.position = position

    def close(self) -> None:
        """Do nothing: there are no resources to release."""


class SequenceFeed:
    """The items of a Sequence, prepared by a loader, in an order computed from seed and epoch.

    Args:
        sequence: The Sequence.
        sampler: Selects the item at each position (one "record" is one item).
        loader: Prepares items.
    """

    in_graph = False
    split: Split | None = None

    def __init__(self, sequence: Any, sampler: IndexSampler, loader: SequenceLoader) -> None:
        self._sequence = sequence
        self._sampler = sampler
        self._loader = loader
        self._items: Generator[Any, None, None] | None = None
        self.batches_per_epoch: int | None = sampler.batches_per_epoch
        self.shared_records: int | None = sampler.num_records
        self.position = 0
        self.records: int | None = 0
        self._block_records = 0
        with preserved_rng():
            self._first = batch_tensors(loader.read_item(0), sequence)
        self.element_spec = batch_spec(self._first)
        self.inputs_spec = self.element_spec

    def block(self, limit: int) -> tuple[Any, int]:
        """Take the next item."""
        if self._items is None:
            self._items = self._open()
        batch = batch_tensors(next(self._items), self._sequence)
        self._block_records = int(batch_records(batch))
        return batch, 1

    def peek(self) -> Any:
        """Return the first item, which was read before."""
        return self._first

    def fetch(self, inputs: Any, index: Any) -> Any:
        """Return the block, which is one batch."""
        return inputs

    def advance(self, count: int, outputs: Mapping[str, Any]) -> None:
        """Record that the item was trained on; notify the Sequence at the end of an epoch."""
        self.position += count
        self.records = (self.records or 0) + self._block_records
        if self._sampler.epoch(self.position) > self._loader.epochs_ended:
            self._close_items()
            self._loader.end_epoch()

    def describe(self, ledger: LedgerWriter) -> None:
        """Declare that ids are the indices of items."""
        ledger.describe(IdKind.SEQUENCE_ITEM, num_records=self._sampler.num_records)

    def log(
        self, ledger: LedgerWriter, outputs: Mapping[str, npt.NDArray[Any]], count: int
    ) -> None:
        """Log the index of the item."""
        first = self.position - count
        indices, ends, epochs = self._sampler.joined_batches(first, self.position)
        ledger.log_batches(first + 1, epochs, ends, indices)

    def identify(self, inputs: Any, indices: range) -> Sequence[Identified]:
        """Return the index of the item, and its arrays."""
        arrays = [each.numpy() for each in leaves(inputs)]
        return [(self._sampler.batch(self.position), arrays) for _ in indices]

    def save(self, directory: Path) -> dict[str, Any]:
        """Return the position and the Sequence's generators; there are no files."""
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

    def _open(self) -> Generator[Any, None, None]:
        epoch = self._loader.epochs_ended
        stop = self.position
        while self._sampler.epoch(stop) == epoch:
            stop += 1
        indices = np.concatenate(list(self._sampler.batches(self.position, stop)))
        return self._loader.batches(indices)


def as_arrays(data: Any, role: str) -> Any:
    """Return arrays as ``model.fit(*data)`` would pass them to the model; check their lengths.

    Args:
        data: Result of the loader: x, or a tuple of x, y and sample weights, of which the last two
            may be None.
        role: "training" or "validation", for messages.

    Returns:
        x alone, ``(x, y)`` or ``(x, y, sample_weight)``; each an array, or nested tuples and dicts
        of arrays.

    Raises:
        InvalidDataTypeError: If a part is not an array.
        DataError: If there are no records.
        CheckFailedError: If the parts differ in length.
    """
    given = data if isinstance(data, tuple) else (data,)
    if len(given) not in (1, 2, 3):
        raise not_supported(data, role, f"a tuple of {len(given)}")
    # A list may be meant as inputs, or as (x, y).
    if not isinstance(data, tuple | Mapping) and not hasattr(data, "__array__"):
        raise not_supported(data, role)
    if not leaves(given[0]):
        raise not_supported(data, role, f"{describe(given[0])} as x")
    parts = tuple(
        _arrays_of(part, role, name) for part, name in zip(_given(given), _PARTS, strict=False)
    )
    lengths = {len(array) for array in leaves(parts)}
    if len(lengths) > 1:
        shapes = ", ".join(
            f"{name}: {', '.join(str(a.shape) for a in leaves(part))}"
            for name, part in zip(_PARTS, parts, strict=False)
        )
        raise CheckFailedError(
            f"the {role} arrays differ in length: {shapes}.\n"
            "The first axis counts the records, and must be the same for all of them."
        )
    if lengths == {0}:
        raise DataError(f"the {role} data is empty: its arrays have 0 records.")
    return parts if len(parts) > 1 else parts[0]


_PARTS = ("x", "y", "sample_weight")


def _arrays_of(part: Any, role: str, name: str) -> Any:
    if isinstance(part, list | tuple):
        return _like(part, [_arrays_of(inner, role, name) for inner in part])
    if isinstance(part, Mapping):
        return {key: _arrays_of(inner, role, name) for key, inner in part.items()}
    if part is None:  # such as the weights of one of several outputs
        return None
    if not (hasattr(part, "__array__") and getattr(part, "shape", None)):
        raise not_supported(part, role, f"{describe(part)} as part of {name}")
    return part if isinstance(part, np.ndarray) else np.asarray(part)


def not_supported(data: Any, role: str, what: str | None = None) -> InvalidDataTypeError:
    """Return the error for data of an unsupported kind."""
    return InvalidDataTypeError(
        f"build_{role}_data_loader returned {what or describe(data)}, which is no supported kind "
        f"of data.\n{_ACCEPTED}"
    )


def as_sequence(data: Any) -> SequenceAdapter | None:
    """Return a Sequence or a `SequenceAdapter` as the latter; None for other kinds."""
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


def make_loader(
    data: Any, adapter: SequenceAdapter, options: FitOptions, seed: int
) -> SequenceLoader:
    """Return the loader that prepares a Sequence's items.

    Args:
        data: Result of the trial; a `SequenceAdapter` has its own settings.
        adapter: The same as an adapter.
        options: Settings of ``configure_fit``; used for a plain Sequence.
        seed: The trial's seed.
    """
    source: SequenceAdapter | FitOptions = adapter if data is adapter else options
    return SequenceLoader(
        adapter.sequence,
        workers=source.workers,
        use_multiprocessing=source.use_multiprocessing,
        max_queue_size=source.max_queue_size,
        seed=seed,
    )


def batch_tensors(batch: Any, source: Any) -> Any:
    """Return one item of a Sequence as tensors, with floats in Keras's precision.

    Raises:
        InvalidDataTypeError: If the item is neither inputs alone nor
            ``(inputs, targets[, sample_weight])``.
    """
    given = batch if isinstance(batch, tuple | list) else (batch,)
    if len(given) not in (1, 2, 3) or given[0] is None:
        raise InvalidDataTypeError(
            f"{type(source).__name__} gave {describe(batch)} as a batch.\n"
            "A batch is the inputs alone, or a tuple (inputs, targets) or (inputs, targets, "
            "sample_weight)."
        )
    parts = tuple(_tensors_of(part) for part in _given(given))
    return parts if len(parts) > 1 else parts[0]


def _given(parts: Any) -> Any:
    """Return the parts before the first None; like Keras, ignore weights without targets."""
    after = next((i for i, part in enumerate(parts) if part is None and i), len(parts))
    return parts[:after]


def inputs_of(batch: Any) -> Any:
    """Return the inputs of a batch, or of its specification, as Keras unpacks batches."""
    return batch[0] if isinstance(batch, tuple | list) else batch


def leaves(structure: Any) -> list[Any]:
    """Return the leaves of nested tuples, lists and dicts, without the parts that are None."""
    return [leaf for leaf in tf.nest.flatten(structure) if leaf is not None]


def _like(part: object, inner: Sequence[object]) -> object:
    """Return a tuple, of the same class if it has names."""
    return type(part)(*inner) if hasattr(part, "_fields") else tuple(inner)


def packed_as(structure: object, flat: Sequence[object]) -> Any:
    """Return a structure with other leaves, of which its None are none; see `leaves`."""
    rest = iter(flat)
    return tf.nest.map_structure(lambda part: None if part is None else next(rest), structure)


def _tensors_of(part: Any) -> Any:
    if isinstance(part, list | tuple):
        return _like(part, [_tensors_of(inner) for inner in part])
    if isinstance(part, Mapping):
        return {key: _tensors_of(inner) for key, inner in part.items()}
    if part is None or isinstance(part, tf.Tensor | tf.SparseTensor | tf.RaggedTensor):
        return part
    return floats_as_keras(np.asarray(part))


def batch_records(batch: Any) -> Any:
    """Return the number of records in a batch of tensors; int32 scalar, also in a graph.

    A batch of nothing but single numbers is one record.
    """
    first = next((leaf for leaf in leaves(batch) if leaf.shape.rank != 0), None)
    if first is None:
        return tf.constant(1)
    if isinstance(first, tf.RaggedTensor):
        return tf.cast(first.nrows(), tf.int32)
    if isinstance(first, tf.SparseTensor):
        return tf.cast(first.dense_shape[0], tf.int32)
    return tf.shape(first)[0]


def batch_spec(batch: Any) -> Any:
    """Return the specification of batches like this one, of any size."""

    def spec(tensor: Any) -> Any:
        if tensor is None:
            return None
        shape = (None, *tensor.shape[1:])
        if isinstance(tensor, tf.RaggedTensor):
            row_splits = tensor.row_splits.dtype
            return tf.RaggedTensorSpec(shape, tensor.dtype, tensor.ragged_rank, row_splits)
        kind = tf.SparseTensorSpec if isinstance(tensor, tf.SparseTensor) else tf.TensorSpec
        return kind(shape, tensor.dtype)

    return tf.nest.map_structure(spec, batch)


def without_none_specs(spec: Any) -> Any:
    """Return tf.data's specification of elements, with None for parts that are always None."""
    none = type(tf.type_spec_from_value(None))
    return tf.nest.map_structure(lambda part: None if isinstance(part, none) else part, spec)


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


def _dtype(array: npt.NDArray[Any]) -> Any:
    if np.issubdtype(array.dtype, np.floating):
        return tf.as_dtype(keras.backend.floatx())
    if array.dtype.kind in "OUS":
        return tf.string
    return tf.as_dtype(array.dtype)


def floats_as_keras(array: npt.NDArray[Any]) -> Any:
    """Return an array as a tensor, with floats in Keras's precision."""
    return tf.convert_to_tensor(array, dtype=_dtype(array))
