"""The types that installed plugins register."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import TypeVar

from detcore.environment import read_environment
from detcore.hooks import PluginManager

_Type = TypeVar("_Type")


@functools.cache
def find_registered(
    list_types: Callable[[PluginManager], Mapping[str, _Type]], kind: str, name: str
) -> _Type:
    """Return the type that a plugin registers under a name; plugins are looked through once.

    Raises:
        AssertionError: If no plugin registers it.
    """
    plugins = PluginManager(read_environment())
    types = list_types(plugins)
    if name not in types:
        problems = "; ".join(map(str, plugins.problems())) or "none"
        raise AssertionError(
            f"no plugin registers the {kind} {name!r}; there are {', '.join(sorted(types))}. "
            f"Problems of plugins: {problems}."
        )
    return types[name]
