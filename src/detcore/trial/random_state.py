"""Save and restore the global random generators of Python and NumPy, as JSON values."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from detcore.contract.errors import InvalidCheckpointError
from detcore.contract.values import JSONValue


def capture_random_state() -> dict[str, JSONValue]:
    """Return the state of ``random`` and of ``numpy.random``.

    The generators do not advance. Other generators, such as ``numpy.random.default_rng(3)``, are
    not included.

    Example:
        >>> import random
        >>> state = capture_random_state()
        >>> value = random.random()
        >>> restore_random_state(state)
        >>> random.random() == value
        True

    Returns:
        Values for ``json.dumps``. After a restore, both generators continue bit for bit.
    """
    version, words, gauss = random.getstate()
    return {
        "python": [version, list(words), gauss],
        "numpy": _to_json(np.random.get_state(legacy=False)),
    }


def restore_random_state(state: Mapping[str, Any]) -> None:
    """Set ``random`` and ``numpy.random`` to a state from `capture_random_state`.

    Either both generators are set, or neither.

    Args:
        state: The state, unchanged or after a round trip through JSON. Unknown keys are ignored.

    Raises:
        InvalidCheckpointError: If the state is damaged or belongs to another type of generator.
            Also a ValueError.
    """
    python, numpy = random.getstate(), np.random.get_state(legacy=False)
    try:
        version, words, gauss = state["python"]
        random.setstate((version, tuple(words), gauss))
        np.random.set_state(_from_json(state["numpy"]))
    except (LookupError, TypeError, ValueError, OverflowError) as error:
        random.setstate(python)
        np.random.set_state(numpy)
        raise InvalidCheckpointError(
            f"the state of the random generators cannot be used: {type(error).__name__}: {error}"
        ) from error


@contextlib.contextmanager
def preserve_random_state() -> Iterator[None]:
    """Restore ``random`` and ``numpy.random`` after the block to their previous state."""
    python, numpy = random.getstate(), np.random.get_state(legacy=False)
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)


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
