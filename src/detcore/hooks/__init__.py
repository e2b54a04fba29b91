"""Find, load and call plugins; `specs` defines their hooks.

Names are imported on first use, so that pluggy and the scan of installed distributions cost
nothing until a plugin is needed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from detcore.contract.hook_values import (
    OBSERVER_HOOKS,
    CheckpointSaved,
    EventInfo,
    LauncherType,
    RendezvousType,
    RoutesType,
    SearcherType,
    StorageType,
)
from detcore.lazy import lazy_names

if TYPE_CHECKING:
    from detcore.contract.hooks import hookimpl, hookspec
    from detcore.hooks._doctor import diagnose
    from detcore.hooks._entry import Observer, PluginEntry, PluginProblem, PluginState
    from detcore.hooks._load import describe_error
    from detcore.hooks._manager import PluginManager

__all__ = [
    "OBSERVER_HOOKS", "CheckpointSaved", "EventInfo",
    "LauncherType", "Observer", "PluginEntry", "PluginManager",
    "PluginProblem", "PluginState", "RendezvousType", "RoutesType", "SearcherType", "StorageType",
    "describe_error", "diagnose", "hookimpl", "hookspec",
]  # fmt: skip

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "_doctor": "diagnose",
        "_entry": "Observer PluginEntry PluginProblem PluginState",
        "_load": "describe_error",
        "_manager": "PluginManager",
        "detcore.contract.hooks": "hookimpl hookspec",
    },
)
