"""The storage types' parts of an experiment file."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field, field_validator

__all__ = ["DirectorySettings", "SharedFsSettings"]


def _absolute(path: str) -> str:
    if not path.startswith("/"):
        raise ValueError(f"{path!r} is not absolute")
    if ".." in path.split("/"):
        raise ValueError(f"{path!r} has a component '..'")
    return path


class SharedFsSettings(BaseModel):
    """``type: shared_fs``: a folder on a file system, shared or not.

    Attributes:
        host_path: Absolute path of a folder that exists.
        storage_path: Folder below it for the checkpoints: relative, or absolute below `host_path`.
        propagation: Mount propagation of a cluster's containers; ignored.
        container_path: From earlier versions; ignored.
        checkpoint_path: From earlier versions; ignored.
        tensorboard_path: From earlier versions; ignored.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    host_path: str = Field(min_length=1)
    storage_path: str | None = None
    propagation: str | None = None
    container_path: str | None = None
    checkpoint_path: str | None = None
    tensorboard_path: str | None = None

    _host_path_is_absolute = field_validator("host_path")(_absolute)


class DirectorySettings(BaseModel):
    """``type: directory``: a folder that exists on every machine.

    Attributes:
        container_path: Absolute path of a folder that exists.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    container_path: str = Field(min_length=1)

    _container_path_is_absolute = field_validator("container_path")(_absolute)
