"""Open storage back ends from settings."""

from __future__ import annotations

from typing import TYPE_CHECKING

from detcore.storage import StorageBackend, open_folder

if TYPE_CHECKING:
    from detcore_storage._settings import DirectorySettings, SharedFsSettings


def open_shared_fs(settings: SharedFsSettings) -> StorageBackend:
    """Return the storage of ``type: shared_fs``.

    Raises:
        ConfigError: If `host_path` is not a folder, as when a file system is not mounted.
        CheckFailedError: If `storage_path` leads out of `host_path`.
    """
    return open_folder(settings.host_path, settings.storage_path)


def open_directory(settings: DirectorySettings) -> StorageBackend:
    """Return the storage of ``type: directory``.

    Raises:
        ConfigError: If `container_path` is not a folder.
    """
    return open_folder(settings.container_path)
