"""The process-wide random generators of Python and NumPy, as values of a JSON file."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from detcore.errors import InvalidCheckpointError
from detcore.types import JSONValue

__all__ = ["capture_random_state", "preserved_random_state", "restore_random_state"]

# The generator that NumPy has unless somebody changed it with np.random.set_bit_generator.
_USUAL = "MT19937"


def capture_random_state() -> dict[str, JSONValue]:
    """Return the state of ``random`` and of ``numpy.random``.

    Nothing is drawn from them. Generators that were made by hand, such as
    ``numpy.random.default_rng(3)``, are not part of it.

    Returns:
        Values for ``json.dumps``; restored from the file, both go on bit for bit.
    """
    version, words, gauss = random.getstate()
    return {"python": [version, list(words), gauss], "numpy": _numpy_state()}


def restore_random_state(state: Mapping[str, Any]) -> None:
    """Set ``random`` and ``numpy.random`` to what `capture_random_state` returned.

    Either both are set, or none.

    Args:
        state: The state, as it was or as JSON gives it back; other keys are left alone.

    Raises:
        InvalidCheckpointError: If it is damaged, or is that of another kind of generator than the
            process has (it is also a ValueError).
    """
    python, numpy = random.getstate(), np.random.get_state(legacy=False)
    try:
        version, words, gauss = state["python"]
        random.setstate((version, tuple(words), gauss))
        np.random.set_state(_numpy_argument(state["numpy"]))
    except (LookupError, TypeError, ValueError, OverflowError) as error:
        random.setstate(python)
        np.random.set_state(numpy)
        raise InvalidCheckpointError(
            f"the state of the random generators cannot be used: {type(error).__name__}: {error}"
        ) from error


@contextlib.contextmanager
def preserved_random_state() -> Iterator[None]:
    """Leave ``random`` and ``numpy.random`` after the block as they were before it."""
    python, numpy = random.getstate(), np.random.get_state(legacy=False)
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)


def _numpy_state() -> dict[str, JSONValue]:
    state: Any = np.random.get_state(legacy=False)
    if state["bit_generator"] != _USUAL:
        return {"kind": str(state["bit_generator"]), "state": _to_json(state)}
    return {
        "kind": _USUAL,
        "key": [int(word) for word in state["state"]["key"]],
        "position": int(state["state"]["pos"]),
        "has_gauss": int(state["has_gauss"]),
        "gauss": float(state["gauss"]),
    }


def _numpy_argument(state: Mapping[str, Any]) -> Any:
    if state["kind"] != _USUAL:
        return _from_json(state["state"])
    return (
        _USUAL,
        np.array(state["key"], np.uint32),
        int(state["position"]),
        int(state["has_gauss"]),
        float(state["gauss"]),
    )


def _to_json(value: Any) -> JSONValue:
    if isinstance(value, dict):
        return {name: _to_json(part) for name, part in value.items()}
    if isinstance(value, np.ndarray):
        return {"dtype": value.dtype.name, "values": value.tolist()}
    plain: JSONValue = value.item() if isinstance(value, np.generic) else value
    return plain


def _from_json(value: Any) -> Any:
    if isinstance(value, dict):
        if set(value) == {"dtype", "values"}:
            return np.array(value["values"], np.dtype(value["dtype"]))
        return {name: _from_json(part) for name, part in value.items()}
    return value
