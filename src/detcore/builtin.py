"""The built-in plugin: registers detcore's own parts through the public hooks."""

from __future__ import annotations

from detcore.plugins import LauncherType, SearcherType, StorageType, hookimpl

__all__ = [
    "detcore_register_launcher",
    "detcore_register_searcher",
    "detcore_register_storage",
]


@hookimpl
def detcore_register_launcher() -> LauncherType:
    """Register the launcher of workers on this machine."""
    return LauncherType(
        name="local",
        launcher="detcore.launch:LocalLauncher",
        settings="detcore.launch.local_launcher:LocalSettings",
    )


@hookimpl
def detcore_register_searcher() -> list[SearcherType]:
    """Register the search methods."""
    return [
        SearcherType(
            name=name,
            method=f"{module}:{prefix}Search",
            settings=f"detcore.search.search_settings:{prefix}Settings",
        )
        for name, module, prefix in (
            ("single", "detcore.search.simple_methods", "Single"),
            ("random", "detcore.search.simple_methods", "Random"),
            ("grid", "detcore.search.simple_methods", "Grid"),
            ("adaptive_asha", "detcore.search.adaptive", "Adaptive"),
            ("async_halving", "detcore.search.adaptive", "Halving"),
        )
    ]


@hookimpl
def detcore_register_storage() -> list[StorageType]:
    """Register the storage types of local and shared directories."""
    return [
        StorageType(
            name=name,
            schemes=(),
            settings=f"detcore.storage.directory_settings:{prefix}Settings",
            backend=f"detcore.storage.directory_settings:open_{name}",
        )
        for name, prefix in {"shared_fs": "SharedFs", "directory": "Directory"}.items()
    ]
