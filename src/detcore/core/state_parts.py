"""Name the parts of a training state of nested dictionaries and lists."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from detcore.contract.errors import InvalidDataTypeError, describe

if TYPE_CHECKING:
    from typing import Any

_SCALARS = (bool, int, float, complex, str, bytes, type(None))


def name_parts(value: Any, name: str = "") -> dict[str, Any]:
    """Return the arrays, numbers and strings in a value, by keys and indices joined with dots.

    A list or tuple of numbers is one part.

    Raises:
        InvalidDataTypeError: If the value contains another object; the message names it.
    """
    is_sequence = isinstance(value, list | tuple)
    if isinstance(value, Mapping) or (
        is_sequence and not all(isinstance(item, _SCALARS) for item in value)
    ):
        items = value.items() if isinstance(value, Mapping) else enumerate(value)
        parts: dict[str, Any] = {}
        for key, item in items:
            parts |= name_parts(item, f"{name}.{key}" if name else str(key))
        return parts
    if is_sequence or isinstance(value, _SCALARS) or hasattr(value, "__array__"):
        return {name or "state": value}
    raise InvalidDataTypeError(
        f"the part {name!r} of the watched state is {describe(value)}.\n"
        "Such an object has no bytes that two runs can compare.\n"
        "Return arrays, numbers and strings, in dictionaries and lists."
    )
