"""Define the checkpoint_storage section: location and retention of checkpoints."""

from __future__ import annotations

import re
from typing import Annotated, Literal, get_args

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
    by_tag,
    setting,
    tagged,
)
from detcore.config._problem import describe_value, problem

__all__ = ["STORAGE_TYPES", "CheckpointStorage", "PluginStorage", "StorageField"]


class _Retention(Section):
    save_experiment_best: int = setting(
        "Keep this many best checkpoints of the whole experiment.", 0, ge=0
    )
    save_trial_best: int = setting("Keep this many best checkpoints of each trial.", 1, ge=0)
    save_trial_latest: int = setting("Keep this many latest checkpoints of each trial.", 1, ge=0)


def _prefix(value: str | None) -> str | None:
    parts = [part for part in (value or "").split("/") if part not in ("", ".")]
    if ".." in parts:
        raise problem(
            f'the prefix "{value}" has a component ".."',
            help=("a prefix may not lead out of itself",),
        )
    return "/".join(parts) or None


_Prefix = Annotated[str | None, AfterValidator(_prefix)]
_Bucket = Annotated[Name, Field(description="Name of the bucket, without a scheme.")]


class SharedFsStorage(_Retention):
    """A folder, local or on a file system that all machines share."""

    type: Literal["shared_fs"] = setting("A folder on a (shared) file system.")
    host_path: AbsolutePath = setting("An existing folder; absolute.")
    storage_path: str | None = setting(
        "Folder below host_path for the checkpoints; relative or absolute.", None
    )
    propagation: str = setting(f"Mount propagation; {FOR_CLUSTERS}", "rprivate")
    container_path: str | None = setting(FROM_EARLIER, None)
    checkpoint_path: str | None = setting(FROM_EARLIER, None)
    tensorboard_path: str | None = setting(FROM_EARLIER, None)


class DirectoryStorage(_Retention):
    """A folder that exists on every machine."""

    type: Literal["directory"] = setting("A folder on every machine.")
    container_path: AbsolutePath = setting("The folder; absolute.")


class S3Storage(_Retention):
    """A bucket of S3 or of a service that speaks its protocol."""

    type: Literal["s3"] = setting("An S3 bucket.")
    bucket: _Bucket
    prefix: _Prefix = setting("Path inside the bucket.", None)
    endpoint_url: str | None = setting("URL of the service; default: Amazon's own.", None)
    access_key: str | None = setting(
        "Access key; default: the usual AWS variables and files.", None
    )
    secret_key: str | None = setting("Secret key that belongs to access_key.", None)


class GcsStorage(_Retention):
    """A bucket of Google Cloud Storage."""

    type: Literal["gcs"] = setting("A Google Cloud Storage bucket.")
    bucket: _Bucket
    prefix: _Prefix = setting("Path inside the bucket.", None)


class AzureStorage(_Retention):
    """A container of Azure Blob Storage."""

    type: Literal["azure"] = setting("An Azure Blob Storage container.")
    container: Name = setting("Name of the container.")
    connection_string: str | None = setting(
        "Connection string; instead of account_url.", None, min_length=1
    )
    account_url: str | None = setting(
        "URL of the account; instead of connection_string.", None, min_length=1
    )
    credential: str | None = setting("Credential for account_url.", None)


class PluginStorage(_Retention, Lenient):
    """A storage type that a plugin provides; its settings are passed on unchanged."""

    type: Name = setting("Name under which the plugin registers the type.")


CheckpointStorage = SharedFsStorage | DirectoryStorage | S3Storage | GcsStorage | AzureStorage
STORAGE_TYPES = by_tag("type", get_args(CheckpointStorage))

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
