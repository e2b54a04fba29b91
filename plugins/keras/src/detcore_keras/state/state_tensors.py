"""The training state as arrays by name, for step digests."""

from __future__ import annotations

import random
import struct
from collections.abc import Iterable
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from detcore_keras.frameworks import tf
from detcore_keras.state.random_generators import find_process_generators
from detcore_keras.state.variables import Found, read_variable

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

    Metrics and counters are left out: validations, which change nothing in training, change them.

    Args:
        variables: Result of `training_variables`.
    """

    def __init__(self, variables: Iterable[Found]) -> None:
        self._named = _name_variables(variables)

    def read(self) -> dict[str, _Array]:
        """Return copies of the values."""
        version, words, gauss = random.getstate()
        kind, numpy_words, *rest = np.random.get_state()
        found = {
            "random.python": _pack(struct.pack(f"={len(words)}Q", *words), version, gauss),
            "random.numpy": _pack(np.asarray(numpy_words).tobytes(), kind, *rest),
        }
        for name, state in find_process_generators().items():
            found[f"random.{name}"] = read_variable(state).astype(np.int64)
        for name, variable in self._named.items():
            value = read_variable(variable)
            if value.dtype.hasobject:
                value = np.frombuffer(repr(value.tolist()).encode(), np.uint8)
            found[name] = value
        return found


def _name_variables(variables: Iterable[Found]) -> dict[str, tf.Variable]:
    named = []
    for item in variables:
        prefix = _PREFIXES.get(item.group)
        if prefix is not None:
            named.append(("random." if item.is_generator else prefix, item))
    found: dict[str, tf.Variable] = {}
    for wanted in _ORDER:
        for prefix, item in named:
            if prefix == wanted:
                # Names of Keras 2 end with the number of an output.
                name = f"{prefix}{item.name.removesuffix(':0')}"
                number, unused = 1, name
                while unused in found:
                    number += 1
                    unused = f"{name}#{number}"
                found[unused] = item.variable
    return found


def _pack(words: bytes, *rest: object) -> _Array:
    return np.frombuffer(words + repr(rest).encode(), np.uint8)
