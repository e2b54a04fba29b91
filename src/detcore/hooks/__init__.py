"""Find, load and call plugins; `specs` defines their hooks.

Names are imported on first use, so that pluggy and the scan of installed distributions cost
nothing until a plugin is needed.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from detcore.hooks._doctor import diagnose
    from detcore.hooks._entry import (
        API_VERSION,
        OBSERVER_HOOKS,
        ApiRange,
        Observer,
        PluginEntry,
        PluginState,
    )
    from detcore.hooks._load import describe_error
    from detcore.hooks._manager import PluginManager
    from detcore.hooks._markers import hookimpl, hookspec
    from detcore.hooks._problem import PluginProblem
    from detcore.hooks.types import (
        CheckpointSaved,
        EventInfo,
        LauncherType,
        RendezvousType,
        RoutesType,
        SearcherType,
        StorageType,
    )

__all__ = [
    "API_VERSION",
    "OBSERVER_HOOKS",
    "ApiRange",
    "CheckpointSaved",
    "EventInfo",
    "LauncherType",
    "Observer",
    "PluginEntry",
    "PluginManager",
    "PluginProblem",
    "PluginState",
    "RendezvousType",
    "RoutesType",
    "SearcherType",
    "StorageType",
    "describe_error",
    "diagnose",
    "hookimpl",
    "hookspec",
]

_HOMES = {
    "API_VERSION": "_entry",
    "ApiRange": "_entry",
    "CheckpointSaved": "types",
    "EventInfo": "types",
    "LauncherType": "types",
    "OBSERVER_HOOKS": "_entry",
    "Observer": "_entry",
    "PluginEntry": "_entry",
    "PluginManager": "_manager",
    "PluginProblem": "_problem",
    "PluginState": "_entry",
    "RendezvousType": "types",
    "RoutesType": "types",
    "SearcherType": "types",
    "StorageType": "types",
    "describe_error": "_load",
    "diagnose": "_doctor",
    "hookimpl": "_markers",
    "hookspec": "_markers",
}


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'detcore.hooks' has no attribute {name!r}")
    return getattr(importlib.import_module(f"detcore.hooks.{home}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
