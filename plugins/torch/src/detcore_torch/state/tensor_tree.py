"""Encode nested plain values with tensors as JSON and a table of tensors, without pickle."""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from detcore.errors import InvalidCheckpointError, InvalidExperimentError, describe
from detcore_torch.libraries import torch

# A value that JSON lacks is encoded as an object with one of these keys.
_TENSOR, _ARRAY, _SCALAR = "$tensor", "$array", "$scalar"
_TUPLE, _SET, _DICT, _COUNTER = "$tuple", "$set", "$dict", "$counter"


def encode_tree(value: Any, tensors: dict[str, Any], place: str) -> Any:
    """Return a value as JSON, with its tensors moved to a table.

    Args:
        value: Nested dicts, lists, tuples and sets of tensors, arrays and plain values.
        tensors: Receives the tensors and arrays, by their path in the value.
        place: Name of the value in messages and in `tensors`.

    Raises:
        InvalidExperimentError: If the value contains another type.
    """
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, torch.Tensor):
        return {_TENSOR: _add_tensor(tensors, place, value.detach())}
    if isinstance(value, np.ndarray | np.generic) and value.dtype.kind in "biufc":
        mark = _ARRAY if isinstance(value, np.ndarray) else _SCALAR
        return {mark: _add_tensor(tensors, place, torch.from_numpy(np.array(value)))}
    if isinstance(value, dict):
        return _encode_dict(value, tensors, place)
    if type(value) in (list, tuple, set, torch.Size):
        items = sorted(value) if isinstance(value, set) else value
        encoded = [encode_tree(item, tensors, f"{place}.{i}") for i, item in enumerate(items)]
        if isinstance(value, list):
            return encoded
        return {_SET if isinstance(value, set) else _TUPLE: encoded}
    raise InvalidExperimentError(
        f"{place} is {describe(value)}, which a checkpoint cannot contain.\n"
        "Checkpoints contain no pickles: only tensors, arrays of numbers, numbers, strings, None, "
        "and dicts, lists, tuples and sets of them.\n"
        "Return such values from state_dict(), and restore the object in load_state_dict()."
    )


def _add_tensor(tensors: dict[str, torch.Tensor], place: str, tensor: torch.Tensor) -> str:
    """Add a tensor under a free name: ``{"a": {"b": x}, "a.b": y}`` has the path a.b twice."""
    name = place
    while name in tensors:
        name += "'"
    tensors[name] = tensor
    return name


def _encode_dict(value: Mapping[Any, Any], tensors: dict[str, Any], place: str) -> Any:
    if isinstance(value, collections.Counter):
        return {_COUNTER: [[key, count] for key, count in value.items()]}
    items = [(key, encode_tree(item, tensors, f"{place}.{key}")) for key, item in value.items()]
    if all(type(key) is str for key, _ in items) and not _is_marked(dict(items)):
        return dict(items)
    keys = [encode_tree(key, tensors, f"a key of {place}") for key, _ in items]
    return {_DICT: [[key, item] for key, (_, item) in zip(keys, items, strict=True)]}


def _is_marked(value: Mapping[str, Any]) -> bool:
    return len(value) == 1 and next(iter(value)).startswith("$")


def decode_tree(value: Any, tensors: Mapping[str, Any]) -> Any:
    """Return the value that `encode_tree` encoded.

    Raises:
        InvalidCheckpointError: If `encode_tree` cannot return such a value, or a tensor is missing.
    """
    if isinstance(value, list):
        return [decode_tree(item, tensors) for item in value]
    if not isinstance(value, dict):
        return value
    if not _is_marked(value):
        return {key: decode_tree(item, tensors) for key, item in value.items()}
    ((mark, content),) = value.items()
    try:
        return _DECODERS[mark](content, tensors)
    except (LookupError, TypeError, ValueError) as error:
        raise InvalidCheckpointError(f"the checkpoint has no value for {value}: {error}") from error


def _decode_items(items: Any, tensors: Mapping[str, Any]) -> Iterable[Any]:
    return (decode_tree(item, tensors) for item in items)


_DECODERS: Mapping[str, Callable[[Any, Mapping[str, Any]], Any]] = {
    _TENSOR: lambda name, tensors: tensors[name],
    _ARRAY: lambda name, tensors: tensors[name].numpy(),
    _SCALAR: lambda name, tensors: tensors[name].numpy()[()],
    _TUPLE: lambda items, tensors: tuple(_decode_items(items, tensors)),
    _SET: lambda items, tensors: set(_decode_items(items, tensors)),
    _DICT: lambda items, tensors: {
        decode_tree(key, tensors): decode_tree(item, tensors) for key, item in items
    },
    _COUNTER: lambda items, tensors: collections.Counter(dict(items)),
}
