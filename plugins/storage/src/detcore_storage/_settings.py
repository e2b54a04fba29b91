"""Define the settings of the storage types in an experiment file."""

from __future__ import annotations

from urllib.parse import unquote, urlsplit

from pydantic import BaseModel, ConfigDict, Field, SecretStr, field_validator, model_validator
from typing_extensions import Self

from detcore.storage import check_key


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


class _BucketSettings(BaseModel):
    """Settings that all object stores share.

    Attributes:
        bucket: Name of the bucket, which must exist.
        prefix: Prefix of all keys; empty components and ``.`` are removed.
        endpoint_url: Address of a server other than the cloud's own.
        deadline_s: A request that has not succeeded after this time, including retries, is an
            error; in seconds.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    bucket: str = Field(min_length=3, max_length=222, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    prefix: str | None = None
    endpoint_url: str | None = Field(default=None, pattern=r"^https?://[^/?#]+/?$")
    deadline_s: float = Field(default=180.0, gt=0, allow_inf_nan=False)

    @field_validator("prefix")
    @classmethod
    def _prefix_is_a_key(cls, prefix: str | None) -> str | None:
        parts = [part for part in (prefix or "").split("/") if part not in ("", ".")]
        return check_key("/".join(parts)) if parts else None

    @classmethod
    def from_url(cls, url: str) -> Self:
        """Return the settings for a URL of one of the type's schemes."""
        parts = urlsplit(url)
        if "@" in parts.netloc:
            raise ValueError("credentials do not belong into a URL; use the cloud's own files")
        return cls(bucket=parts.netloc, prefix=unquote(parts.path))

    def root(self) -> str:
        """Return bucket and prefix, as a path."""
        return f"{self.bucket}/{self.prefix}" if self.prefix else self.bucket


class S3Settings(_BucketSettings):
    """``type: s3``: a bucket of Amazon S3, or of a server that speaks its protocol.

    Attributes:
        access_key: With `secret_key`, the credentials; default: the usual chain (environment
            variables, profiles, roles).
        secret_key: See `access_key`.
        region: Default: the one of the profile, or ``us-east-1``.
        path_style: Whether the bucket is in the path rather than in the host name; default: if
            there is an `endpoint_url`.
    """

    access_key: SecretStr | None = None
    secret_key: SecretStr | None = None
    region: str | None = None
    path_style: bool | None = None

    @model_validator(mode="after")
    def _keys_are_a_pair(self) -> Self:
        if (self.access_key is None) != (self.secret_key is None):
            raise ValueError("access_key and secret_key go together; one of them is missing")
        return self


class GcsSettings(_BucketSettings):
    """``type: gcs``: a bucket of Google Cloud Storage.

    Credentials are the application's default ones; an emulator (``endpoint_url``, or the variable
    ``STORAGE_EMULATOR_HOST``) gets none.

    Attributes:
        project: Project to bill requests to; default: the project of the credentials.
    """

    project: str | None = None
