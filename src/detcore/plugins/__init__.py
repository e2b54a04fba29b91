"""Find, load and call plugins. `detcore.contract.hooks` defines their hooks.

Names are imported on first use, so pluggy and the scan of installed distributions cost nothing
until a plugin is needed.
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
    from detcore.plugins.doctor import diagnose
    from detcore.plugins.plugin_entry import Observer, PluginEntry, PluginProblem, PluginState
    from detcore.plugins.plugin_loading import describe_error
    from detcore.plugins.plugin_manager import PluginManager

__all__ = [
    "OBSERVER_HOOKS", "CheckpointSaved", "EventInfo",
    "LauncherType", "Observer", "PluginEntry", "PluginManager",
    "PluginProblem", "PluginState", "RendezvousType", "RoutesType", "SearcherType", "StorageType",
    "describe_error", "diagnose", "hookimpl", "hookspec",
]  # fmt: skip

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "doctor": "diagnose",
        "plugin_entry": "Observer PluginEntry PluginProblem PluginState",
        "plugin_loading": "describe_error",
        "plugin_manager": "PluginManager",
        "detcore.contract.hooks": "hookimpl hookspec",
    },
)
