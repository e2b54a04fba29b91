"""Walk nested tuples, lists and dicts, such as batches and their specifications."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any


def flatten(structure: Any) -> list[Any]:
    """Return the leaves. As in Keras, the parts of a dict are in the order of its sorted keys."""
    if isinstance(structure, Mapping):
        return [leaf for key in sorted(structure) for leaf in flatten(structure[key])]
    if isinstance(structure, list | tuple):
        return [leaf for part in structure for leaf in flatten(part)]
    return [structure]


def map_structure(function: Callable[[Any], Any], structure: Any) -> Any:
    """Return a structure of the same kind with each leaf replaced, in the order of `flatten`."""
    if isinstance(structure, Mapping):
        parts = {key: map_structure(function, structure[key]) for key in sorted(structure)}
        return {key: parts[key] for key in structure}
    if isinstance(structure, list | tuple):
        items = [map_structure(function, part) for part in structure]
        if hasattr(structure, "_fields"):
            return type(structure)(*items)
        return items if isinstance(structure, list) else tuple(items)
    return function(structure)
