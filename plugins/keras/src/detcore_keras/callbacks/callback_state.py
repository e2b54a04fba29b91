"""Serialize the state of callbacks as JSON and arrays, without pickle."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from detcore.errors import InvalidCheckpointError, InvalidExperimentError
from detcore.trial import AttributeCodec
from detcore_keras.frameworks import backend, keras
from detcore_keras.state.array_files import decode_array

_PLAIN = (bool, int, str)
# Keys of JSON objects that stand for values that JSON cannot express.
_ARRAY, _SCALAR, _FLOAT, _TUPLE, _PAIRS = "$array", "$scalar", "$float", "$tuple", "$pairs"
_TENSOR, _VARIABLE = "$tensor", "$variable"
# Objects in callback attributes that consist of variables.
_STATEFUL: tuple[type, ...] = (
    keras.layers.Layer,
    keras.metrics.Metric,
    keras.optimizers.Optimizer,
    *backend.generator_types,
)


class KerasCodec(AttributeCodec):
    """Reads and restores tensors, variables, and Keras objects that consist of variables."""

    def read_tensor(self, value: Any) -> npt.NDArray[Any] | None:
        """Return the content of a variable or an eager numeric tensor, or None."""
        return backend.read_tensor(value)

    def assign_tensor(self, current: Any, saved: Any) -> Any:
        """Assign a saved tensor to the current variable if shape and type match."""
        value = backend.read_tensor(saved)
        if value is None or not backend.is_variable(current):
            return saved
        before = backend.read_variable(raw := backend.get_raw(current))
        if (before.shape, before.dtype) != (value.shape, value.dtype):
            return saved
        raw.assign(value)
        return current

    def get_state(self, value: Any) -> Any:
        """Return the values of the variables of a layer, metric, optimizer or generator.

        For a container in which Keras tracks variables, return its items.
        """
        if isinstance(value, _STATEFUL):
            return [backend.read_variable(variable) for variable in _list_variables(value)]
        for kind in (list, dict, set):
            if isinstance(value, kind):
                return kind(value)
        return None

    def set_state(self, value: Any, state: Any) -> None:
        """Restore values that `get_state` returned."""
        if isinstance(value, list):
            value[:] = state
            return
        if isinstance(value, dict | set):
            value.clear()
            value.update(state)
            return
        for variable, saved_value in zip(_list_variables(value), state, strict=True):
            variable.assign(saved_value)


def _list_variables(value: Any) -> list[Any]:
    if hasattr(value, "state"):
        return [backend.get_raw(value.state)]
    variables = value.variables
    return list(map(backend.get_raw, variables() if callable(variables) else variables))


def keep_rows(callbacks: Iterable[Any]) -> None:
    """Make each ``CSVLogger`` append to its file. Call it before ``on_train_begin``."""
    for callback in callbacks:
        if isinstance(callback, keras.callbacks.CSVLogger):
            callback.append = True


def measure_rows(callbacks: Mapping[str, Any]) -> dict[str, int]:
    """Return the file size in bytes of each ``CSVLogger``, by the callback's name."""
    return {
        name: os.path.getsize(callback.filename)
        for name, callback in callbacks.items()
        if isinstance(callback, keras.callbacks.CSVLogger) and os.path.isfile(callback.filename)
    }


def restore_rows(callbacks: Mapping[str, Any], sizes: Mapping[str, int]) -> None:
    """Remove the rows written after a checkpoint. Call it after ``on_train_begin``."""
    for name, size in measure_rows(callbacks).items():
        size_bytes = min(size, sizes.get(name, 0))
        os.truncate(callbacks[name].filename, size_bytes)
        callbacks[name].append_header = size_bytes == 0


def encode_state(value: Any, arrays: dict[str, npt.NDArray[Any]], place: str) -> Any:
    """Encode a callback's state as a JSON value.

    Args:
        value: Numbers, strings, None, NumPy arrays and scalars, tensors and variables, and lists,
            tuples and dicts of them.
        arrays: Receives copies of arrays, under a key that the JSON value names.
        place: Location of the value, for messages, such as ``"EarlyStopping.best"``.

    Raises:
        InvalidExperimentError: If the state contains any other value.
    """
    if value is None or type(value) in _PLAIN:
        return value
    if type(value) is float:
        return value if math.isfinite(value) else {_FLOAT: repr(value)}
    is_numpy = isinstance(value, np.ndarray | np.generic) and value.dtype.kind not in "OSUM"
    array = np.array(value) if is_numpy else KerasCodec().read_tensor(value)
    if array is not None:
        if is_numpy:
            kind = _SCALAR if isinstance(value, np.generic) else _ARRAY
        else:
            kind = _VARIABLE if backend.is_variable(value) else _TENSOR
        key = f"{len(arrays):05d}"
        arrays[key] = array
        return {kind: key, "dtype": array.dtype.name}
    if type(value) is list:
        return [encode_state(part, arrays, f"{place}[{i}]") for i, part in enumerate(value)]
    if type(value) is tuple:
        return {
            _TUPLE: [encode_state(part, arrays, f"{place}[{i}]") for i, part in enumerate(value)]
        }
    if isinstance(value, dict):
        entries = [(k, encode_state(part, arrays, f"{place}[{k!r}]")) for k, part in value.items()]
        if all(type(key) is str and not key.startswith("$") for key in value):
            return dict(entries)
        return {_PAIRS: [[encode_state(key, arrays, place), part] for key, part in entries]}
    raise InvalidExperimentError(
        f"the callback state {place} is a {type(value).__module__}.{type(value).__qualname__}, "
        "which cannot be saved in a checkpoint.\n"
        "State is written as JSON and arrays, so that loading a checkpoint never runs code: "
        "numbers, strings, None, NumPy arrays, and lists, tuples and dicts of them.\n"
        "Return only such values from get_state, and derive other objects in load_state."
    )


def decode_state(saved: Any, arrays: Mapping[str, npt.NDArray[Any]]) -> Any:
    """Decode a result of `encode_state`.

    Raises:
        InvalidCheckpointError: If the JSON value is damaged.
    """
    if isinstance(saved, list):
        return [decode_state(part, arrays) for part in saved]
    if not isinstance(saved, dict):
        return saved
    if _FLOAT in saved:
        return float(saved[_FLOAT])
    if _TUPLE in saved:
        return tuple(decode_state(part, arrays) for part in saved[_TUPLE])
    if _PAIRS in saved:
        return {
            decode_state(key, arrays): decode_state(part, arrays) for key, part in saved[_PAIRS]
        }
    for kind in (_ARRAY, _SCALAR, _TENSOR, _VARIABLE):
        if kind in saved:
            try:
                array = decode_array(arrays, saved[kind], saved["dtype"])
            except (KeyError, TypeError) as error:
                raise InvalidCheckpointError(
                    f"the checkpoint's callback state is damaged: {saved!r}"
                ) from error
            if kind in (_TENSOR, _VARIABLE):
                make = backend.make_variable if kind == _VARIABLE else backend.make_tensor
                return make(array, saved["dtype"])
            return array[()] if kind == _SCALAR else array
    return {name: decode_state(part, arrays) for name, part in saved.items()}
