"""Define the checkpoint_storage section: location and retention of checkpoints."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Discriminator, Field, Tag

from detcore.config._fields import (
    DUMP_ANY,
    FOR_CLUSTERS,
    FROM_EARLIER,
    KIND_MARK,
    AbsolutePath,
    Lenient,
    Name,
    Section,
    tagged,
)
from detcore.config._problem import describe_value, problem

__all__ = ["STORAGE_TYPES", "CheckpointStorage", "PluginStorage", "StorageField"]


class _Retention(Section):
    save_experiment_best: int = Field(
        default=0, ge=0, description="Keep this many best checkpoints of the whole experiment."
    )
    save_trial_best: int = Field(
        default=1, ge=0, description="Keep this many best checkpoints of each trial."
    )
    save_trial_latest: int = Field(
        default=1, ge=0, description="Keep this many latest checkpoints of each trial."
    )


def _prefix(value: str | None) -> str | None:
    if value is not None and ".." in value.split("/"):
        raise problem(
            f'the prefix "{value}" has a component ".."',
            help=("a prefix may not lead out of itself",),
        )
    if value is None:
        return None
    parts = [part for part in value.split("/") if part not in ("", ".")]
    return "/".join(parts) or None


_Prefix = Annotated[str | None, AfterValidator(_prefix)]
_Bucket = Annotated[Name, Field(description="Name of the bucket, without a scheme.")]


class SharedFsStorage(_Retention):
    """A folder, local or on a file system that all machines share."""

    type: Literal["shared_fs"] = Field(description="A folder on a (shared) file system.")
    host_path: AbsolutePath = Field(description="An existing folder; absolute.")
    storage_path: str | None = Field(
        default=None,
        description="Folder below host_path for the checkpoints; relative or absolute.",
    )
    propagation: str = Field(default="rprivate", description=f"Mount propagation; {FOR_CLUSTERS}")
    container_path: str | None = Field(default=None, description=FROM_EARLIER)
    checkpoint_path: str | None = Field(default=None, description=FROM_EARLIER)
    tensorboard_path: str | None = Field(default=None, description=FROM_EARLIER)


class DirectoryStorage(_Retention):
    """A folder that exists on every machine."""

    type: Literal["directory"] = Field(description="A folder on every machine.")
    container_path: AbsolutePath = Field(description="The folder; absolute.")


class S3Storage(_Retention):
    """A bucket of S3 or of a service that speaks its protocol."""

    type: Literal["s3"] = Field(description="An S3 bucket.")
    bucket: _Bucket
    prefix: _Prefix = Field(default=None, description="Path inside the bucket.")
    endpoint_url: str | None = Field(
        default=None, description="URL of the service; default: Amazon's own."
    )
    access_key: str | None = Field(
        default=None, description="Access key; default: the usual AWS variables and files."
    )
    secret_key: str | None = Field(
        default=None, description="Secret key that belongs to access_key."
    )


class GcsStorage(_Retention):
    """A bucket of Google Cloud Storage."""

    type: Literal["gcs"] = Field(description="A Google Cloud Storage bucket.")
    bucket: _Bucket
    prefix: _Prefix = Field(default=None, description="Path inside the bucket.")


class AzureStorage(_Retention):
    """A container of Azure Blob Storage."""

    type: Literal["azure"] = Field(description="An Azure Blob Storage container.")
    container: Name = Field(description="Name of the container.")
    connection_string: str | None = Field(
        default=None, min_length=1, description="Connection string; instead of account_url."
    )
    account_url: str | None = Field(
        default=None, min_length=1, description="URL of the account; instead of connection_string."
    )
    credential: str | None = Field(default=None, description="Credential for account_url.")


class PluginStorage(_Retention, Lenient):
    """A storage type that a plugin provides; its settings are passed on unchanged."""

    type: Name = Field(description="Name under which the plugin registers the type.")


STORAGE_TYPES: dict[str, type[Section]] = {
    "shared_fs": SharedFsStorage,
    "directory": DirectoryStorage,
    "s3": S3Storage,
    "gcs": GcsStorage,
    "azure": AzureStorage,
}

CheckpointStorage = SharedFsStorage | DirectoryStorage | S3Storage | GcsStorage | AzureStorage

_URL, _SECTION = KIND_MARK + "url", KIND_MARK + "section"
_SCHEME = re.compile(r"[a-z][a-z0-9+.-]*://.|/", re.IGNORECASE)


def _place(value: object) -> object:
    if isinstance(value, (bool, int, float, list)):
        raise problem(
            f"expected a mapping with 'type', or a URL, got {describe_value(value)}",
            choices=STORAGE_TYPES,
        )
    return value


def _url(value: str) -> str:
    if not _SCHEME.match(value):
        raise problem(
            f"expected an absolute path or a URL, got {describe_value(value)}",
            help=("write '/folder', 's3://bucket/prefix', or a mapping with 'type'",),
        )
    return value


StorageField = Annotated[
    Annotated[str, AfterValidator(_url), Tag(_URL)]
    | Annotated[
        CheckpointStorage,
        Field(discriminator="type"),
        tagged("type", "storage type", STORAGE_TYPES, other=PluginStorage, retired={}),
        DUMP_ANY,
        Tag(_SECTION),
    ],
    Discriminator(lambda value: _URL if isinstance(value, str) else _SECTION),
    BeforeValidator(_place),
]
