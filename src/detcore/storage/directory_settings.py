"""Define the settings of the directory storage types, and open these storages."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationInfo, field_validator

from detcore.contract.errors import ConfigError
from detcore.storage.local_storage import LocalStorage


def _check_absolute(path: str) -> str:
    if not path.startswith("/"):
        raise ValueError(f"expected an absolute path, got {path!r}\nStart it with '/'.")
    if ".." in path.split("/"):
        raise ValueError(f"{path!r} has a component '..'")
    return path


_Directory = Annotated[str, AfterValidator(_check_absolute)]


class SharedFsSettings(BaseModel):
    """A directory, local or on a file system that all machines share."""

    model_config = ConfigDict(extra="forbid", strict=True)

    host_path: _Directory = Field(description="Absolute path of an existing directory.")
    storage_path: str | None = Field(
        default=None,
        description="Directory below host_path for the checkpoints; relative or absolute.",
    )
    propagation: str | None = Field(
        default=None, description="For a cluster: accepted, no effect here."
    )
    container_path: str | None = Field(
        default=None, description="From an earlier version: accepted, no effect here."
    )
    checkpoint_path: str | None = Field(
        default=None, description="From an earlier version: accepted, no effect here."
    )
    tensorboard_path: str | None = Field(
        default=None, description="From an earlier version: accepted, no effect here."
    )

    @field_validator("storage_path")
    @classmethod
    def _check_below_host(cls, path: str | None, info: ValidationInfo) -> str | None:
        host = Path(info.data.get("host_path", "/"))
        root = host / (path or "")
        if ".." in root.parts or not root.is_relative_to(host):
            raise ValueError(
                f"{path!r} leads out of host_path {str(host)!r}\n"
                "Use a path relative to host_path, or an absolute path below it."
            )
        return path


class DirectorySettings(BaseModel):
    """A directory that exists on every machine."""

    model_config = ConfigDict(extra="forbid", strict=True)

    container_path: _Directory = Field(description="Absolute path of an existing directory.")


def open_shared_fs(settings: SharedFsSettings) -> LocalStorage:
    """Return the storage of ``type: shared_fs``.

    Raises:
        ConfigError: If ``host_path`` is not a directory.
    """
    return _open_below(Path(settings.host_path), settings.storage_path or "")


def open_directory(settings: DirectorySettings) -> LocalStorage:
    """Return the storage of ``type: directory``.

    Raises:
        ConfigError: If ``container_path`` is not a directory.
    """
    return _open_below(Path(settings.container_path), "")


def _open_below(host: Path, path: str) -> LocalStorage:
    """Open a directory below an existing directory, so that no empty mount point is used."""
    if not os.path.isdir(host):
        raise ConfigError(
            f"the checkpoint storage directory {host} does not exist.\n"
            "It must exist, so that an unmounted file system is detected.\n"
            f"Mount it, or create it: mkdir -p {host}"
        )
    return LocalStorage(host / path)
