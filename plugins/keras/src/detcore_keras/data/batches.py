"""Convert batches of arrays, nested in any way, to tensors and their specifications."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from detcore.errors import CheckFailedError, DataError, InvalidDataTypeError, describe
from detcore_keras.frameworks import keras, tf

_ACCEPTED = (
    "Accepted: x alone, or a tuple (x,), (x, y) or (x, y, sample_weight), of NumPy arrays or of "
    "lists or dicts of arrays;\na tf.data.Dataset of batches, wrapped with context.wrap_dataset; a "
    "keras.utils.Sequence (PyDataset); a detcore_keras.SequenceAdapter."
)


_PARTS = ("x", "y", "sample_weight")


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
        _map_leaves(part, functools.partial(_as_array, role, name))
        for part, name in zip(_given(given), _PARTS, strict=False)
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


def _as_array(role: str, name: str, part: Any) -> Any:
    if not (hasattr(part, "__array__") and getattr(part, "shape", None)):
        raise not_supported(part, role, f"{describe(part)} as part of {name}")
    return np.asanyarray(part)


def not_supported(data: Any, role: str, what: str | None = None) -> InvalidDataTypeError:
    """Return the error for data of an unsupported kind."""
    return InvalidDataTypeError(
        f"build_{role}_data_loader returned {what or describe(data)}, which is no supported kind "
        f"of data.\n{_ACCEPTED}"
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
    parts = tuple(_map_leaves(part, _as_tensor) for part in _given(given))
    return parts if len(parts) > 1 else parts[0]


def _given(parts: Any) -> Any:
    """Return the parts before the first None; like Keras, ignore weights without targets."""
    after = next((i for i, part in enumerate(parts) if part is None and i), len(parts))
    return parts[:after]


def leaves(structure: Any) -> list[Any]:
    """Return the leaves of nested tuples, lists and dicts, without the parts that are None."""
    return [leaf for leaf in tf.nest.flatten(structure) if leaf is not None]


def _map_leaves(part: Any, convert: Callable[[Any], Any]) -> Any:
    """Convert nested arrays; lists become tuples, and parts that are None stay None.

    A part may be None where it belongs to one of several outputs, such as its weights.
    """
    if isinstance(part, list | tuple):
        inner = [_map_leaves(each, convert) for each in part]
        return type(part)(*inner) if hasattr(part, "_fields") else tuple(inner)
    if isinstance(part, Mapping):
        return {key: _map_leaves(each, convert) for key, each in part.items()}
    return None if part is None else convert(part)


def packed_as(structure: object, flat: Sequence[object]) -> Any:
    """Return a structure with other leaves, of which its None are none; see `leaves`."""
    rest = iter(flat)
    return tf.nest.map_structure(lambda part: None if part is None else next(rest), structure)


def _as_tensor(part: Any) -> Any:
    is_tensor = isinstance(part, tf.Tensor | tf.SparseTensor | tf.RaggedTensor)
    return part if is_tensor else floats_as_keras(np.asarray(part))


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


def floats_as_keras(array: npt.NDArray[Any]) -> Any:
    """Return an array as a tensor, with floats in Keras's precision."""
    return tf.convert_to_tensor(array, dtype=tensor_type(array))


def tensor_type(array: npt.NDArray[Any]) -> Any:
    """Return TensorFlow's type for the values of an array, with floats in Keras's precision."""
    if np.issubdtype(array.dtype, np.floating):
        return tf.as_dtype(keras.backend.floatx())
    if array.dtype.kind in "OUS":
        return tf.string
    return tf.as_dtype(array.dtype)
