"""The training state as arrays by name, for step digests."""

from __future__ import annotations

import random
import struct
from collections.abc import Iterable
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from detcore_keras.frameworks import backend
from detcore_keras.state.random_generators import find_process_generators
from detcore_keras.state.variables import NamedVariable

_Array: TypeAlias = npt.NDArray[Any]

_PREFIXES = {
    "seeds": "random.",
    "weights": "model.",
    "extra": "model.",
    "accumulated": "gradient.",
    "optimizer": "optimizer.",
    "hyperparameters": "optimizer.",
}
_ORDER = ("random.", "gradient.", "model.", "optimizer.")


class StateReader:
    """Reads generators, sums of gradients, weights and optimizers' variables as arrays by name.

    Metrics and counters are left out, because validations change them without changing training.

    Args:
        variables: Result of `training_variables`.
    """

    def __init__(self, variables: Iterable[NamedVariable]) -> None:
        self._named = _name_variables(variables)

    def read_state(self) -> dict[str, _Array]:
        """Return copies of the values."""
        version, words, gauss = random.getstate()
        kind, numpy_words, *numpy_rest = np.random.get_state()
        arrays = {
            "random.python": _pack_state(struct.pack(f"={len(words)}Q", *words), version, gauss),
            "random.numpy": _pack_state(np.asarray(numpy_words).tobytes(), kind, *numpy_rest),
        }
        for name, state in find_process_generators().items():
            arrays[f"random.{name}"] = backend.read_variable(state).astype(np.int64)
        for name, variable in self._named.items():
            value = backend.read_variable(variable)
            if value.dtype.hasobject:
                value = np.frombuffer(repr(value.tolist()).encode(), np.uint8)
            arrays[name] = value
        return arrays


def read_unlisted(
    model: Any, optimizers: Iterable[Any], variables: Iterable[NamedVariable]
) -> dict[str, _Array]:
    """Return the variables that Keras lists for a model and its optimizers, but detcore does not.

    Args:
        model: The model. Its weights exist.
        optimizers: Its optimizers.
        variables: Result of `training_variables`.
    """
    listed_ids = {backend.get_key(item.variable) for item in variables}
    unlisted = {}
    for prefix, owner in (("model.", model), *(("optimizer.", item) for item in optimizers)):
        owned = owner.variables
        for variable in filter(backend.is_variable, owned() if callable(owned) else owned):
            raw = backend.get_raw(variable)
            if backend.get_key(raw) not in listed_ids:
                name = getattr(variable, "path", None) or raw.name.removesuffix(":0")
                unlisted[f"{prefix}{name}"] = raw
    return {name: backend.read_variable(variable) for name, variable in unlisted.items()}


def _name_variables(variables: Iterable[NamedVariable]) -> dict[str, Any]:
    prefixed_variables = []
    for item in variables:
        prefix = _PREFIXES.get(item.group)
        if prefix is not None:
            prefixed_variables.append(("random." if item.is_generator else prefix, item))
    variables_by_name: dict[str, Any] = {}
    for current_prefix in _ORDER:
        for prefix, item in prefixed_variables:
            if prefix == current_prefix:
                # Names of Keras 2 end with the number of an output.
                name = f"{prefix}{item.name.removesuffix(':0')}"
                number, unused = 1, name
                while unused in variables_by_name:
                    number += 1
                    unused = f"{name}#{number}"
                variables_by_name[unused] = item.variable
    return variables_by_name


def _pack_state(words: bytes, *rest: object) -> _Array:
    return np.frombuffer(words + repr(rest).encode(), np.uint8)
