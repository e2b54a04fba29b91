"""Store checkpoints in S3, Google Cloud Storage and the file systems of fsspec.

Names are imported on first use, so that discovering the plugin stays cheap.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from detcore.lazy import lazy_names

if TYPE_CHECKING:
    from detcore_storage.fsspec_storage import FsspecStorage
    from detcore_storage.gcs_storage import GcsStorage
    from detcore_storage.retries import RetryPolicy, retry, retry_async
    from detcore_storage.s3_storage import S3Storage
    from detcore_storage.storage_settings import GcsSettings, S3Settings

__version__ = "0.1.0"

__all__ = [
    "FsspecStorage",
    "GcsSettings",
    "GcsStorage",
    "RetryPolicy",
    "S3Settings",
    "S3Storage",
    "retry",
    "retry_async",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "fsspec_storage": "FsspecStorage",
        "gcs_storage": "GcsStorage",
        "retries": "RetryPolicy retry retry_async",
        "s3_storage": "S3Storage",
        "storage_settings": "GcsSettings S3Settings",
    },
)
