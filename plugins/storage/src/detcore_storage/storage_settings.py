"""Define the settings of the storage types in an experiment file."""

from __future__ import annotations

from urllib.parse import unquote, urlsplit

from pydantic import BaseModel, ConfigDict, Field, SecretStr, field_validator, model_validator
from typing_extensions import Self

from detcore.storage import check_key


class _BucketSettings(BaseModel):
    """Settings that all object stores share."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    bucket: str = Field(
        min_length=3,
        max_length=222,
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$",
        description="Name of the bucket, which must exist, without a scheme.",
    )
    prefix: str | None = Field(
        default=None, description="Path inside the bucket; empty components and '.' are removed."
    )
    endpoint_url: str | None = Field(
        default=None,
        pattern=r"^https?://[^/?#]+/?$",
        description="Address of a server other than the cloud's own.",
    )
    deadline_s: float = Field(
        default=180.0,
        gt=0,
        allow_inf_nan=False,
        description="Seconds after which a request that has not succeeded is an error, including "
        "retries.",
    )

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
    """A bucket of Amazon S3, or of a server that speaks its protocol."""

    access_key: SecretStr | None = Field(
        default=None,
        description="Access key; default: the usual variables, profiles and roles.",
    )
    secret_key: SecretStr | None = Field(
        default=None, description="Secret key that belongs to access_key."
    )
    region: str | None = Field(
        default=None, description="Region; default: the one of the profile, or us-east-1."
    )
    path_style: bool | None = Field(
        default=None,
        description="Whether the bucket is in the path rather than in the host name; default: if "
        "there is an endpoint_url.",
    )

    @model_validator(mode="after")
    def _keys_are_a_pair(self) -> Self:
        if (self.access_key is None) != (self.secret_key is None):
            raise ValueError("access_key and secret_key go together; one of them is missing")
        return self


class GcsSettings(_BucketSettings):
    """A bucket of Google Cloud Storage.

    Credentials are the application's default ones; an emulator (``endpoint_url``, or the variable
    ``STORAGE_EMULATOR_HOST``) gets none.
    """

    project: str | None = Field(
        default=None,
        description="Project to bill requests to; default: the project of the credentials.",
    )
