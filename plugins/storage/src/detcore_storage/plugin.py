"""Implement the hooks without importing pydantic or fsspec."""

from __future__ import annotations

from typing import TYPE_CHECKING

from detcore import hookimpl
from detcore.plugins import StorageType

if TYPE_CHECKING:
    import click

__all__ = ["detcore_register_commands", "detcore_register_storage"]


@hookimpl
def detcore_register_commands() -> click.Command:
    """Register ``detcore storage``."""
    from detcore_storage.storage_command import storage_group

    return storage_group


@hookimpl
def detcore_register_storage() -> list[StorageType]:
    """Register the storage types of object stores."""
    return [
        StorageType(
            name="s3",
            schemes=("s3",),
            settings="detcore_storage.storage_settings:S3Settings",
            backend="detcore_storage.s3_storage:open_s3",
        ),
        StorageType(
            name="gcs",
            schemes=("gs", "gcs"),
            settings="detcore_storage.storage_settings:GcsSettings",
            backend="detcore_storage.gcs_storage:open_gcs",
        ),
    ]
