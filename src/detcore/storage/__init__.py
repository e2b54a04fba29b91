"""Where checkpoint files live: the `StorageBackend` protocol and its implementations."""

from detcore.storage._bulk import BulkTransfers
from detcore.storage._check import Finding, check_storage
from detcore.storage._copy import Sink
from detcore.storage._digest import Digester, digest_file
from detcore.storage._faults import is_transient, translated
from detcore.storage._fsspec import FsspecStorage
from detcore.storage._keys import check_key
from detcore.storage._local import LocalStorage
from detcore.storage._open import open_folder, open_storage
from detcore.storage._protocol import (
    DEFAULT_ALGORITHM,
    Capabilities,
    Entry,
    FileDigest,
    Pair,
    Progress,
    StorageBackend,
)
from detcore.storage._retry import RetryPolicy, retry, retry_async

__all__ = [
    "DEFAULT_ALGORITHM",
    "BulkTransfers",
    "Capabilities",
    "Digester",
    "Entry",
    "FileDigest",
    "Finding",
    "FsspecStorage",
    "LocalStorage",
    "Pair",
    "Progress",
    "RetryPolicy",
    "Sink",
    "StorageBackend",
    "check_key",
    "check_storage",
    "digest_file",
    "is_transient",
    "open_folder",
    "open_storage",
    "retry",
    "retry_async",
    "translated",
]
