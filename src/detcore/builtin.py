"""The built-in plugin: registers detcore's launcher and search methods through the public hooks."""

from __future__ import annotations

from detcore.hooks import LauncherType, SearcherType, hookimpl

__all__ = ["detcore_register_launcher", "detcore_register_searcher"]


@hookimpl
def detcore_register_launcher() -> LauncherType:
    """Register the launcher of workers on this machine."""
    return LauncherType(
        name="local",
        launcher="detcore.launch:LocalLauncher",
        settings="detcore.config:LocalLauncherSettings",
    )


@hookimpl
def detcore_register_searcher() -> list[SearcherType]:
    """Register the search methods."""
    return [
        SearcherType(name="single", method="detcore.search:SingleSearch"),
        SearcherType(name="random", method="detcore.search:RandomSearch"),
        SearcherType(name="grid", method="detcore.search:GridSearch"),
        SearcherType(name="adaptive_asha", method="detcore.search:AdaptiveSearch"),
        SearcherType(name="async_halving", method="detcore.search:HalvingSearch"),
    ]
