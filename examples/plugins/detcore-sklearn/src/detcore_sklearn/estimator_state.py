"""Fitted attributes as JSON values and arrays: exactly, and without pickle."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from detcore.errors import InvalidCheckpointError, InvalidModelError

from detcore_sklearn.estimators import part_class, part_name

Arrays = dict[str, npt.NDArray[Any]]

_PLAIN = (bool, int, float, str, type(None))


class Encoder:
    """Turns values into JSON values, and sets their arrays aside.

    An array that is there twice stays one array: averaged SGD writes to it under one name and
    reads it under another.

    Attributes:
        arrays: Copies of the arrays that were found, by name.
    """

    def __init__(self) -> None:
        self.arrays: Arrays = {}
        # With the arrays themselves, so that no other one gets the id of one that is gone.
        self._seen: dict[int, tuple[str, npt.NDArray[Any]]] = {}

    def encode(self, value: Any, place: str) -> Any:
        """Return a value as JSON values.

        Args:
            value: What an estimator holds.
            place: Its name, such as ``"_optimizer.ms.0"``; arrays are named by it.

        Raises:
            InvalidModelError: If there is something in it that cannot be restored.
        """
        if isinstance(value, np.generic):  # before float: np.float64 is one, and more
            return {"scalar": value.item(), "dtype": value.dtype.str}
        if isinstance(value, _PLAIN):
            return value
        if isinstance(value, np.ndarray):
            return {"array": self._array(value, place)}
        if isinstance(value, list | tuple):
            items = [self.encode(item, f"{place}.{index}") for index, item in enumerate(value)]
            return {type(value).__name__: items}
        if isinstance(value, Mapping):
            return self.encode_mapping(value, f"{place}.")
        if isinstance(value, np.random.RandomState):
            return {"generator": self.encode(value.get_state(legacy=False), place)}
        name = part_name(value)
        if name is None:
            raise InvalidModelError(
                f"the estimator's {place} is a {type(value).__name__}, which cannot be saved.\n"
                "Numbers, texts, arrays, lists and dictionaries of them, and "
                "numpy.random.RandomState can be."
            )
        return {"part": name, "attributes": self.encode(vars(value), place)}

    def encode_mapping(self, values: Mapping[Any, Any], prefix: str = "") -> Any:
        """Return a mapping as JSON values; its values are named by their keys."""
        return {
            "dict": [
                [self.encode(key, f"{prefix}key"), self.encode(value, f"{prefix}{key}")]
                for key, value in values.items()
            ]
        }

    def _array(self, value: npt.NDArray[Any], place: str) -> str:
        if value.dtype.hasobject:
            raise InvalidModelError(
                f"the estimator's {place} is an array of Python objects, which cannot be saved.\n"
                "Give it numbers, or texts as a NumPy array of texts."
            )
        if id(value) not in self._seen:
            name = place
            while name in self.arrays:
                name += "'"
            self.arrays[name] = value.copy(order="K")  # training goes on with the original
            self._seen[id(value)] = name, value
        return self._seen[id(value)][0]


def decode(node: Any, arrays: Mapping[str, npt.NDArray[Any]]) -> Any:
    """Return the value that `Encoder.encode` was given.

    Args:
        node: What it returned, as it was or as JSON gives it back.
        arrays: The arrays by name; they become part of the value.

    Raises:
        InvalidCheckpointError: If it is nothing that `Encoder.encode` returns.
    """
    if isinstance(node, _PLAIN):
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
                part = object.__new__(part_class(name))
                vars(part).update(decode(attributes, arrays))
                return part
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidCheckpointError(
            f"the estimator's state cannot be read: {type(error).__name__}: {error}.\n"
            "The checkpoint was changed; detcore checkpoint verify says which file."
        ) from error
    raise InvalidCheckpointError(f"the estimator's state holds {node!r}, which means nothing here")
