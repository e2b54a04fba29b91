"""The training state as arrays by name, for step digests."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from detcore_keras._host_memory import host_array
from detcore_keras._random_state import generator_words
from detcore_keras._variables import training_variables

__all__ = ["name_variables", "read_state"]

_PREFIXES = {
    "seeds": "random.",
    "weights": "model.",
    "extra": "model.",
    "accumulated": "gradient.",
    "optimizer": "optimizer.",
}
_ORDER = ("random.", "gradient.", "model.", "optimizer.")


def name_variables(model: Any, optimizers: Sequence[Any]) -> dict[str, Any]:
    """Return generators, sums of gradients, weights and optimizers' variables by name.

    Metrics and counters are left out: validations, which change nothing in training, change them.

    Args:
        model: The model; its variables exist.
        optimizers: Its optimizers.
    """
    named = []
    for item in training_variables(model, optimizers):
        prefix = _PREFIXES.get(item.group)
        if prefix is not None:
            named.append(("random." if item.is_generator else prefix, item))
    found: dict[str, Any] = {}
    for wanted in _ORDER:
        for prefix, item in named:
            if prefix == wanted:
                # Names of Keras 2 end with the number of an output.
                name = f"{prefix}{item.name.removesuffix(':0')}"
                found[_unused(name, found)] = item.variable
    return found


def read_state(variables: Mapping[str, Any]) -> dict[str, npt.NDArray[Any]]:
    """Return the process's generators and the values of variables.

    The arrays may share the variables' memory; see `host_array`.

    Args:
        variables: As `name_variables` returns them.
    """
    version, words, gauss = random.getstate()
    kind, numpy_words, *rest = np.random.get_state()
    found: dict[str, npt.NDArray[Any]] = {
        "random.python": _joined(np.asarray(words, np.uint64), (version, gauss)),
        "random.numpy": _joined(np.asarray(numpy_words), (kind, *rest)),
    }
    for name, state in generator_words().items():
        found[f"random.{name}"] = np.asarray(state, np.int64)
    for name, variable in variables.items():
        found[name] = _as_array(variable)
    return found


def _joined(words: npt.NDArray[Any], rest: object) -> npt.NDArray[Any]:
    return np.frombuffer(words.tobytes() + repr(rest).encode(), np.uint8)


def _as_array(variable: Any) -> npt.NDArray[Any]:
    value = host_array(variable)
    if not value.dtype.hasobject:
        return value
    return np.frombuffer(repr(value.tolist()).encode(), np.uint8)


def _unused(name: str, names: dict[str, Any]) -> str:
    number, unused = 1, name
    while unused in names:
        number += 1
        unused = f"{name}#{number}"
    return unused
