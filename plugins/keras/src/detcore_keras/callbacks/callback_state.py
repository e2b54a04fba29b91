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
from detcore_keras.frameworks import KERAS_MAJOR, keras, tf
from detcore_keras.state.array_files import decoded
from detcore_keras.state.variables import raw_variable

_PLAIN = (bool, int, str)
# Keys of JSON objects that represent values without a form in JSON.
_ARRAY, _SCALAR, _FLOAT, _TUPLE, _PAIRS = "$array", "$scalar", "$float", "$tuple", "$pairs"
_TENSOR, _VARIABLE = "$tensor", "$variable"
# Objects in attributes of callbacks whose state is their variables.
_STATEFUL: tuple[type, ...] = (
    keras.layers.Layer,
    keras.metrics.Metric,
    keras.optimizers.Optimizer,
    tf.random.Generator,
    *((keras.random.SeedGenerator,) if KERAS_MAJOR == 3 else ()),
)


class KerasCodec(AttributeCodec):
    """Reads and restores tensors, variables, and objects of Keras that consist of variables."""

    def read_tensor(self, value: Any) -> npt.NDArray[Any] | None:
        """Return the content of a variable or an eager tensor of numbers, or None."""
        raw = raw_variable(value)
        if not isinstance(raw, tf.Variable) and not (tf.is_tensor(raw) and hasattr(raw, "numpy")):
            return None
        array = np.asarray(raw.numpy())
        return None if array.dtype.kind in "OSUM" else array

    def assign_tensor(self, current: Any, saved: Any) -> Any:
        """Assign a saved tensor to the present variable, if it fits."""
        raw, value = raw_variable(current), raw_variable(saved)
        if not isinstance(raw, tf.Variable) or (raw.shape, raw.dtype) != (value.shape, value.dtype):
            return saved
        raw.assign(value)
        return current

    def get_state(self, value: Any) -> Any:
        """Return the values of the variables of a layer, metric, optimizer or generator."""
        if not isinstance(value, _STATEFUL):
            return None
        return [raw_variable(variable).numpy() for variable in _variables(value)]

    def set_state(self, value: Any, state: Any) -> None:
        """Restore values that `get_state` returned."""
        variables = [raw_variable(variable) for variable in _variables(value)]
        for variable, saved in zip(variables, state, strict=True):
            variable.assign(saved)


def _variables(value: Any) -> list[Any]:
    if hasattr(value, "state"):
        return [value.state]
    found = value.variables
    return list(found() if callable(found) else found)


def keep_rows(callbacks: Iterable[Any]) -> None:
    """Keep the rows that each ``CSVLogger`` has written before; before its ``on_train_begin``."""
    for callback in callbacks:
        if isinstance(callback, keras.callbacks.CSVLogger):
            callback.append = True


def measure_rows(callbacks: Mapping[str, Any]) -> dict[str, int]:
    """Return the size in bytes of the file of each ``CSVLogger``, by the callback's name."""
    return {
        name: os.path.getsize(callback.filename)
        for name, callback in callbacks.items()
        if isinstance(callback, keras.callbacks.CSVLogger) and os.path.isfile(callback.filename)
    }


def restore_rows(callbacks: Mapping[str, Any], sizes: Mapping[str, int]) -> None:
    """Remove the rows that were written after a checkpoint; after ``on_train_begin``."""
    for name, size in measure_rows(callbacks).items():
        kept = min(size, sizes.get(name, 0))
        os.truncate(callbacks[name].filename, kept)
        callbacks[name].append_header = kept == 0


def to_saved(value: Any, arrays: dict[str, npt.NDArray[Any]], place: str) -> Any:
    """Turn a callback's state into a JSON value.

    Args:
        value: Numbers, strings, None, NumPy arrays and scalars, tensors and variables; lists,
            tuples and dicts of them.
        arrays: Copies of arrays are added here, under a key that the JSON value names.
        place: Where the value is, for messages, such as ``"EarlyStopping.best"``.

    Raises:
        InvalidExperimentError: If it holds anything else.
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
            kind = _VARIABLE if isinstance(raw_variable(value), tf.Variable) else _TENSOR
        key = f"{len(arrays):05d}"
        arrays[key] = array
        return {kind: key, "dtype": array.dtype.name}
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
    for kind in (_ARRAY, _SCALAR, _TENSOR, _VARIABLE):
        if kind in saved:
            try:
                array = decoded(arrays, saved[kind], saved["dtype"])
            except (KeyError, TypeError) as error:
                raise InvalidCheckpointError(
                    f"the checkpoint's callback state is damaged: {saved!r}"
                ) from error
            if kind in (_TENSOR, _VARIABLE):
                tensor = tf.constant(array, tf.as_dtype(saved["dtype"]))
                return tf.Variable(tensor) if kind == _VARIABLE else tensor
            return array[()] if kind == _SCALAR else array
    return {name: from_saved(part, arrays) for name, part in saved.items()}
