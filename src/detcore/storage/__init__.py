"""Where checkpoint files live: the `StorageBackend` protocol and its implementations."""

from detcore.storage._copy import digest_file
from detcore.storage._fsspec import FsspecStorage
from detcore.storage._keys import check_key
from detcore.storage._local import LocalStorage
from detcore.storage._open import open_folder, open_storage
from detcore.storage._protocol import Capabilities, Entry, FileDigest, StorageBackend

__all__ = [
    "Capabilities",
    "Entry",
    "FileDigest",
    "FsspecStorage",
    "LocalStorage",
    "StorageBackend",
    "check_key",
    "digest_file",
    "open_folder",
    "open_storage",
]
