"""Store checkpoints with typed settings: in folders, S3 and Google Cloud Storage.

Names are imported on first use, so that discovering the plugin stays cheap.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from detcore_storage._gcs import GcsStorage
    from detcore_storage._s3 import S3Storage
    from detcore_storage._settings import (
        DirectorySettings,
        GcsSettings,
        S3Settings,
        SharedFsSettings,
    )
    from detcore_storage._shared_fs import open_directory, open_shared_fs

__version__ = "0.1.0"

__all__ = [
    "DirectorySettings",
    "GcsSettings",
    "GcsStorage",
    "S3Settings",
    "S3Storage",
    "SharedFsSettings",
    "open_directory",
    "open_shared_fs",
]

_HOMES = {
    "DirectorySettings": "_settings",
    "GcsSettings": "_settings",
    "GcsStorage": "_gcs",
    "S3Settings": "_settings",
    "S3Storage": "_s3",
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
