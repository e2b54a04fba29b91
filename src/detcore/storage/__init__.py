"""Store checkpoint files: the `StorageBackend` protocol and its implementations."""

from detcore.contract.storage import (
    DEFAULT_ALGORITHM,
    Capabilities,
    Entry,
    FileDigest,
    Pair,
    Progress,
    StorageBackend,
)
from detcore.storage._bulk import BulkTransfers, Sink, write_all
from detcore.storage._digest import Digester, digest_bytes, digest_file, read_whole, write_whole
from detcore.storage._faults import RetryPolicy, is_transient, retry, retry_async, translated
from detcore.storage._fsspec import FsspecStorage
from detcore.storage._keys import check_key, check_targets, is_safe_key
from detcore.storage._local import LocalStorage
from detcore.storage._open import open_folder, open_storage

__all__ = [
    "DEFAULT_ALGORITHM",
    "BulkTransfers",
    "Capabilities",
    "Digester",
    "Entry",
    "FileDigest",
    "FsspecStorage",
    "LocalStorage",
    "Pair",
    "Progress",
    "RetryPolicy",
    "Sink",
    "StorageBackend",
    "check_key",
    "check_targets",
    "digest_bytes",
    "digest_file",
    "is_safe_key",
    "is_transient",
    "open_folder",
    "open_storage",
    "read_whole",
    "retry",
    "retry_async",
    "translated",
    "write_all",
    "write_whole",
]
