"""The training state as arrays by name, for step digests."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from detcore_keras._host_memory import host_array
from detcore_keras._random_state import generator_words
from detcore_keras._variables import training_variables

__all__ = ["name_state"]

_PREFIXES = {
    "seeds": "random.",
    "weights": "model.",
    "extra": "model.",
    "accumulated": "gradient.",
    "optimizer": "optimizer.",
}
_ORDER = ("random.", "gradient.", "model.", "optimizer.")


def name_state(model: Any | None, optimizers: Sequence[Any]) -> dict[str, npt.NDArray[Any]]:
    """Return generators, sums of gradients, weights and optimizers' variables.

    Metrics and counters are left out: validations, which change nothing in training, change them.
    The arrays may share the variables' memory; see `host_array`.

    Args:
        model: The model; None before its variables exist.
        optimizers: Its optimizers.
    """
    found: dict[str, npt.NDArray[Any]] = {
        "random.python": _as_bytes(random.getstate()),
        "random.numpy": _as_bytes(np.random.get_state()),
    }
    for name, words in generator_words().items():
        found[f"random.{name}"] = np.asarray(words, np.int64)
    items = [] if model is None else training_variables(model, optimizers)
    named = [(_PREFIXES.get(item.group), item) for item in items]
    for wanted in _ORDER:
        for prefix, item in named:
            prefix = "random." if item.is_generator and prefix is not None else prefix
            if prefix == wanted:
                found[_unused(f"{prefix}{item.name}", found)] = _as_array(item.variable)
    return found


def _as_array(variable: Any) -> npt.NDArray[Any]:
    value = host_array(variable)
    return _as_bytes(value.tolist()) if value.dtype.hasobject else value


def _as_bytes(value: object) -> npt.NDArray[Any]:
    if isinstance(value, tuple) and any(isinstance(each, np.ndarray) for each in value):
        value = tuple(each.tolist() if isinstance(each, np.ndarray) else each for each in value)
    return np.frombuffer(repr(value).encode(), np.uint8)


def _unused(name: str, names: dict[str, Any]) -> str:
    number, unused = 1, name
    while unused in names:
        number += 1
        unused = f"{name}#{number}"
    return unused
