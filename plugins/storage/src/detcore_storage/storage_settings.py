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
        description="Name of an existing bucket, without a scheme.",
    )
    prefix: str | None = Field(
        default=None, description="Path inside the bucket; empty components and '.' are removed."
    )
    endpoint_url: str | None = Field(
        default=None,
        pattern=r"^https?://[^/?#]+/?$",
        description="Address of a server, if it is not the cloud's server.",
    )
    deadline_s: float = Field(
        default=180.0,
        gt=0,
        allow_inf_nan=False,
        description="Maximum duration of a request in seconds, including retries.",
    )

    @field_validator("prefix")
    @classmethod
    def _check_prefix(cls, prefix: str | None) -> str | None:
        parts = [part for part in (prefix or "").split("/") if part not in ("", ".")]
        return check_key("/".join(parts)) if parts else None

    @classmethod
    def from_url(cls, url: str) -> Self:
        """Return the settings for a URL of one of the type's schemes."""
        parts = urlsplit(url)
        if "@" in parts.netloc:
            raise ValueError("credentials do not belong in a URL; use the cloud's credential files")
        return cls(bucket=parts.netloc, prefix=unquote(parts.path))

    def root(self) -> str:
        """Return bucket and prefix as a path."""
        return f"{self.bucket}/{self.prefix}" if self.prefix else self.bucket


class S3Settings(_BucketSettings):
    """A bucket of Amazon S3, or of a server with the same protocol."""

    access_key: SecretStr | None = Field(
        default=None,
        description="Access key. Default: the AWS variables, profiles and roles.",
    )
    secret_key: SecretStr | None = Field(
        default=None, description="Secret key that belongs to access_key."
    )
    region: str | None = Field(
        default=None, description="Region. Default: the profile's region, or us-east-1."
    )
    path_style: bool | None = Field(
        default=None,
        description="Put the bucket into the path instead of the host name. Default: true if "
        "endpoint_url is set.",
    )

    @model_validator(mode="after")
    def _check_key_pair(self) -> Self:
        if (self.access_key is None) != (self.secret_key is None):
            raise ValueError(
                "access_key and secret_key are required together; one of them is missing"
            )
        return self


class GcsSettings(_BucketSettings):
    """A bucket of Google Cloud Storage.

    Credentials are the application default credentials. An emulator (``endpoint_url``, or the
    variable ``STORAGE_EMULATOR_HOST``) receives no credentials.
    """

    project: str | None = Field(
        default=None,
        description="Project to bill requests to. Default: the project of the credentials.",
    )
