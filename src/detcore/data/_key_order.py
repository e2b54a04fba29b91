"""Preserve the order of keys in nested structures if a file format loses it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from detcore.types import JSONValue

__all__ = ["key_order", "with_key_order"]


def key_order(structure: Any) -> JSONValue:
    """Return the keys of all dicts in a structure of dicts, tuples and lists, in their order.

    Example::

        >>> key_order(({"b": 1, "a": 2}, 3))
        [[['b', None], ['a', None]], None]
    """
    if isinstance(structure, Mapping):
        return [[name, key_order(part)] for name, part in structure.items()]
    if isinstance(structure, tuple | list):
        return [key_order(part) for part in structure]
    return None


def with_key_order(structure: Any, order: Any) -> Any:
    """Return a structure with the keys of its dicts in an order from `key_order`.

    Keys that are not in `order` come last, sorted; without an order, all keys are sorted.
    """
    if isinstance(structure, Mapping):
        noted = dict(order or ())
        names = [name for name in noted if name in structure]
        names += sorted((name for name in structure if name not in noted), key=str)
        return {name: with_key_order(structure[name], noted.get(name)) for name in names}
    if isinstance(structure, tuple | list):
        below = list(order or ())
        below += [None] * (len(structure) - len(below))
        parts = [with_key_order(part, o) for part, o in zip(structure, below, strict=False)]
        make = getattr(type(structure), "_make", type(structure))  # a namedtuple has _make
        return make(parts)
    return structure
