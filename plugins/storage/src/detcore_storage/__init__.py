"""Checkpoint storage for detcore with typed settings: folders and shared file systems.

Names are imported on first use: finding the plugin must not cost what using it costs.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from detcore_storage._settings import DirectorySettings, SharedFsSettings
    from detcore_storage._shared_fs import open_directory, open_shared_fs

__version__ = "0.1.0"

__all__ = ["DirectorySettings", "SharedFsSettings", "open_directory", "open_shared_fs"]

_HOMES = {
    "DirectorySettings": "_settings",
    "SharedFsSettings": "_settings",
    "open_directory": "_shared_fs",
    "open_shared_fs": "_shared_fs",
}


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'detcore_storage' has no attribute {name!r}")
    return getattr(importlib.import_module(f"detcore_storage.{home}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
