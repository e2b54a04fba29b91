"""The built-in plugin: what ships with detcore comes in through the same door as any other."""

from __future__ import annotations

from detcore.hooks import LauncherType, SearcherType, hookimpl

__all__ = ["detcore_register_launcher", "detcore_register_searcher"]


@hookimpl
def detcore_register_launcher() -> LauncherType:
    """Register the launcher of workers on this machine."""
    return LauncherType(name="local", launcher="detcore.launch:LocalLauncher")


@hookimpl
def detcore_register_searcher() -> SearcherType:
    """Register the search method that trains one trial to a fixed length."""
    return SearcherType(name="single", method="detcore.core:SearcherContext")
