"""Convert batches of arrays, nested in any way, to tensors and their specifications."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from detcore.errors import CheckFailedError, DataError, InvalidDataTypeError, describe
from detcore_keras.frameworks import backend
from detcore_keras.nested import flatten, map_structure

_ACCEPTED = (
    "Accepted: x alone, or a tuple (x,), (x, y) or (x, y, sample_weight), of NumPy arrays or of "
    "lists or dicts of arrays;\na tf.data.Dataset of batches, which a trial wraps with "
    "context.wrap_dataset; a keras.utils.Sequence (PyDataset); a detcore_keras.SequenceAdapter;\n"
    "a detcore.data.DataSource, such as detcore_torch.resumable returns."
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
        DataError: If the arrays have no records.
        CheckFailedError: If the parts differ in length.
    """
    elements = data if isinstance(data, tuple) else (data,)
    if len(elements) not in (1, 2, 3):
        raise unsupported_data_error(data, role, f"a tuple of {len(elements)}")
    # A list may be meant as inputs, or as (x, y).
    if not isinstance(data, tuple | Mapping) and not hasattr(data, "__array__"):
        raise unsupported_data_error(data, role)
    if not list_leaves(elements[0]):
        raise unsupported_data_error(data, role, f"{describe(elements[0])} as x")
    parts = tuple(
        _map_leaves(part, functools.partial(_as_array, role, name))
        for part, name in zip(_drop_missing_parts(elements), _PARTS, strict=False)
    )
    lengths = {len(array) for array in list_leaves(parts)}
    if len(lengths) > 1:
        shapes = ", ".join(
            f"{name}: {', '.join(str(a.shape) for a in list_leaves(part))}"
            for name, part in zip(_PARTS, parts, strict=False)
        )
        raise CheckFailedError(
            f"the {role} arrays differ in length: {shapes}.\n"
            "The first axis counts the records, and must have the same length in all arrays."
        )
    if lengths == {0}:
        raise DataError(f"the {role} data is empty: its arrays have 0 records.")
    return parts if len(parts) > 1 else parts[0]


def _as_array(role: str, name: str, part: Any) -> Any:
    if not (hasattr(part, "__array__") and getattr(part, "shape", None)):
        raise unsupported_data_error(part, role, f"{describe(part)} as part of {name}")
    return np.asanyarray(part)


def unsupported_data_error(data: Any, role: str, what: str | None = None) -> InvalidDataTypeError:
    """Return the error for data of an unsupported kind."""
    return InvalidDataTypeError(
        f"{what or describe(data)} is not supported as {role} data.\n{_ACCEPTED}"
    )


def batch_tensors(batch: Any, source: Any) -> Any:
    """Return one item of a Sequence as tensors, with floats in Keras's precision.

    Raises:
        InvalidDataTypeError: If the item is neither inputs alone nor
            ``(inputs, targets[, sample_weight])``.
    """
    elements = batch if isinstance(batch, tuple | list) else (batch,)
    if len(elements) not in (1, 2, 3) or elements[0] is None:
        raise InvalidDataTypeError(
            f"{type(source).__name__} returned {describe(batch)} as a batch.\n"
            "A batch is the inputs alone, or a tuple (inputs, targets) or (inputs, targets, "
            "sample_weight)."
        )
    parts = tuple(
        _map_leaves(part, backend.as_batch_part) for part in _drop_missing_parts(elements)
    )
    return parts if len(parts) > 1 else parts[0]


def _drop_missing_parts(parts: Any) -> Any:
    """Return the parts before the first None. Like Keras, ignore weights without targets."""
    after = next((i for i, part in enumerate(parts) if part is None and i), len(parts))
    return parts[:after]


def list_leaves(structure: Any) -> list[Any]:
    """Return the leaves of nested tuples, lists and dicts, without the parts that are None."""
    return [leaf for leaf in flatten(structure) if leaf is not None]


def _map_leaves(part: Any, convert: Callable[[Any], Any]) -> Any:
    """Convert nested arrays; lists become tuples, and parts that are None stay None.

    A part may be None where it belongs to one of several outputs, such as its weights.
    """
    if isinstance(part, list | tuple):
        inner = [_map_leaves(child, convert) for child in part]
        return type(part)(*inner) if hasattr(part, "_fields") else tuple(inner)
    if isinstance(part, Mapping):
        return {key: _map_leaves(child, convert) for key, child in part.items()}
    return None if part is None else convert(part)


def pack_as(structure: object, flat: Sequence[object]) -> Any:
    """Return a structure with other leaves. Parts that are None stay None; see `list_leaves`."""
    leaves_left = iter(flat)
    return map_structure(lambda part: None if part is None else next(leaves_left), structure)


def batch_spec(batch: Any) -> Any:
    """Return the specification of batches like this one, of any size."""
    return map_structure(lambda part: None if part is None else backend.tensor_spec(part), batch)
