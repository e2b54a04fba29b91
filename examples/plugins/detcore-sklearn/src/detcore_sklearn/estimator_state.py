"""Exact encoding of fitted attributes as JSON values and arrays, without pickle."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from detcore.errors import InvalidCheckpointError, InvalidModelError

from detcore_sklearn.estimators import find_part_class, find_part_name

Arrays = dict[str, npt.NDArray[Any]]

_JSON_TYPES = (bool, int, float, str, type(None))


class Encoder:
    """Encodes values as JSON values and collects their arrays.

    An array that occurs twice is stored once, because averaged SGD writes to an array under one
    name and reads it under another name.

    Attributes:
        arrays: Copies of the arrays by name.
    """

    def __init__(self) -> None:
        self.arrays: Arrays = {}
        # References to the arrays, so that no id is reused.
        self._names: dict[int, tuple[str, npt.NDArray[Any]]] = {}

    def encode(self, value: Any, path: str) -> Any:
        """Encode a value as JSON values.

        Args:
            value: Attribute of an estimator.
            path: Name of the attribute, such as ``"_optimizer.ms.0"``, also used for arrays.

        Raises:
            InvalidModelError: If a part of the value cannot be restored.
        """
        if isinstance(value, np.generic):  # before float, because np.float64 is a float
            return {"scalar": value.item(), "dtype": value.dtype.str}
        if isinstance(value, _JSON_TYPES):
            return value
        if isinstance(value, np.ndarray):
            return {"array": self._store_array(value, path)}
        if isinstance(value, list | tuple):
            items = [self.encode(item, f"{path}.{index}") for index, item in enumerate(value)]
            return {type(value).__name__: items}
        if isinstance(value, Mapping):
            return self.encode_mapping(value, f"{path}.")
        if isinstance(value, np.random.RandomState):
            return {"generator": self.encode(value.get_state(legacy=False), path)}
        name = find_part_name(value)
        if name is None:
            raise InvalidModelError(
                f"the estimator's {path} is a {type(value).__name__}, which cannot be saved.\n"
                "Supported types are numbers, strings, arrays, numpy.random.RandomState, and lists "
                "and dictionaries of these types."
            )
        return {"part": name, "attributes": self.encode(vars(value), path)}

    def encode_mapping(self, values: Mapping[Any, Any], prefix: str = "") -> Any:
        """Encode a mapping as JSON values. Names of the values consist of prefix and key."""
        return {
            "dict": [
                [self.encode(key, f"{prefix}key"), self.encode(value, f"{prefix}{key}")]
                for key, value in values.items()
            ]
        }

    def _store_array(self, value: npt.NDArray[Any], path: str) -> str:
        if value.dtype.hasobject:
            raise InvalidModelError(
                f"the estimator's {path} is an array of Python objects, which cannot be saved.\n"
                "Use an array of numbers or of NumPy strings."
            )
        if id(value) not in self._names:
            name = path
            while name in self.arrays:
                name += "'"
            self.arrays[name] = value.copy(order="K")  # training continues with the original
            self._names[id(value)] = name, value
        return self._names[id(value)][0]


def decode(node: Any, arrays: Mapping[str, npt.NDArray[Any]]) -> Any:
    """Decode a value encoded by `Encoder.encode`.

    Args:
        node: Encoded value, also after a JSON round trip.
        arrays: Arrays by name, which become part of the value.

    Raises:
        InvalidCheckpointError: If the encoded value is invalid.
    """
    if isinstance(node, _JSON_TYPES):
        return node
    try:
        match node:
            case {"scalar": value, "dtype": str(dtype)}:
                return np.dtype(dtype).type(value)
            case {"array": str(name)}:
                return arrays[name]
            case {"list": list(items)}:
                return [decode(item, arrays) for item in items]
            case {"tuple": list(items)}:
                return tuple(decode(item, arrays) for item in items)
            case {"dict": list(pairs)}:
                return {decode(key, arrays): decode(value, arrays) for key, value in pairs}
            case {"generator": state}:
                generator = np.random.RandomState()
                generator.set_state(decode(state, arrays))
                return generator
            case {"part": str(name), "attributes": attributes}:
                part = object.__new__(find_part_class(name))
                vars(part).update(decode(attributes, arrays))
                return part
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidCheckpointError(
            f"the estimator's state cannot be read: {type(error).__name__}: {error}.\n"
            "The checkpoint was changed. Find the changed file with: detcore checkpoint verify"
        ) from error
    raise InvalidCheckpointError(f"unrecognized estimator state: {node!r}")
