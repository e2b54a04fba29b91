"""Serialize the state of callbacks as JSON and arrays, without pickle."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from detcore.errors import InvalidCheckpointError, InvalidExperimentError
from detcore_keras._arrays import decoded

__all__ = ["from_saved", "to_saved"]

_PLAIN = (bool, int, str)
# Keys of JSON objects that represent values without a form in JSON.
_ARRAY, _SCALAR, _FLOAT, _TUPLE, _PAIRS = "$array", "$scalar", "$float", "$tuple", "$pairs"


def to_saved(value: Any, arrays: dict[str, npt.NDArray[Any]], place: str) -> Any:
    """Turn a callback's state into a JSON value.

    Args:
        value: Numbers, strings, None, NumPy arrays and scalars; lists, tuples and dicts of them.
        arrays: Arrays are added here, under a key that the JSON value names.
        place: Where the value is, for messages, such as ``"EarlyStopping.best"``.

    Raises:
        InvalidExperimentError: If it holds anything else.
    """
    if value is None or type(value) in _PLAIN:
        return value
    if type(value) is float:
        return value if math.isfinite(value) else {_FLOAT: repr(value)}
    if isinstance(value, np.ndarray | np.generic) and value.dtype.kind not in "OSUM":
        key = f"{len(arrays):05d}"
        arrays[key] = np.asarray(value)
        kind = _SCALAR if isinstance(value, np.generic) else _ARRAY
        return {kind: key, "dtype": value.dtype.name}
    if type(value) is list:
        return [to_saved(part, arrays, f"{place}[{i}]") for i, part in enumerate(value)]
    if type(value) is tuple:
        return {_TUPLE: [to_saved(part, arrays, f"{place}[{i}]") for i, part in enumerate(value)]}
    if isinstance(value, dict):
        saved = [(k, to_saved(part, arrays, f"{place}[{k!r}]")) for k, part in value.items()]
        if all(type(key) is str and not key.startswith("$") for key in value):
            return dict(saved)
        return {_PAIRS: [[to_saved(key, arrays, place), part] for key, part in saved]}
    raise InvalidExperimentError(
        f"the callback state {place} is a {type(value).__module__}.{type(value).__qualname__}, "
        "which cannot be saved in a checkpoint.\n"
        "State is written as JSON and arrays, so that loading a checkpoint runs no code from it: "
        "numbers, strings, None, NumPy arrays, and lists, tuples and dicts of them.\n"
        "Return only such values from get_state, and make the rest from them in load_state."
    )


def from_saved(saved: Any, arrays: Mapping[str, npt.NDArray[Any]]) -> Any:
    """Return the value from which `to_saved` made a JSON value.

    Raises:
        InvalidCheckpointError: If it is damaged.
    """
    if isinstance(saved, list):
        return [from_saved(part, arrays) for part in saved]
    if not isinstance(saved, dict):
        return saved
    if _FLOAT in saved:
        return float(saved[_FLOAT])
    if _TUPLE in saved:
        return tuple(from_saved(part, arrays) for part in saved[_TUPLE])
    if _PAIRS in saved:
        return {from_saved(key, arrays): from_saved(part, arrays) for key, part in saved[_PAIRS]}
    for kind in (_ARRAY, _SCALAR):
        if kind in saved:
            try:
                array = decoded(arrays, saved[kind], saved["dtype"])
            except (KeyError, TypeError) as error:
                raise InvalidCheckpointError(
                    f"the checkpoint's callback state is damaged: {saved!r}"
                ) from error
            return array[()] if kind == _SCALAR else array
    return {name: from_saved(part, arrays) for name, part in saved.items()}
