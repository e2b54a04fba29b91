"""Store checkpoint files: the `StorageBackend` protocol, and folders of this machine.

Any other URL is opened by fsspec, whose back end is in the distribution detcore-storage; its names
are also found here.
"""

from detcore.contract.storage import (
    DEFAULT_ALGORITHM,
    Capabilities,
    Entry,
    FileDigest,
    Pair,
    Progress,
    StorageBackend,
)
from detcore.lazy import lazy_names
from detcore.storage._digest import (
    Digester,
    Sink,
    copy_stream,
    digest_bytes,
    digest_file,
    read_whole,
    run_all,
    write_all,
    write_whole,
)
from detcore.storage._faults import PROBES, is_full, is_left_over, translated, try_out
from detcore.storage._keys import check_key, check_targets, is_safe_key
from detcore.storage._local import LocalStorage
from detcore.storage._open import open_folder, open_storage

__all__ = [
    "DEFAULT_ALGORITHM",
    "PROBES",
    "Capabilities",
    "Digester",
    "Entry",
    "FileDigest",
    "LocalStorage",
    "Pair",
    "Progress",
    "Sink",
    "StorageBackend",
    "check_key",
    "check_targets",
    "copy_stream",
    "digest_bytes",
    "digest_file",
    "is_full",
    "is_left_over",
    "is_safe_key",
    "open_folder",
    "open_storage",
    "read_whole",
    "run_all",
    "translated",
    "try_out",
    "write_all",
    "write_whole",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "detcore_storage": (
            "BulkTransfers FsspecStorage RetryPolicy is_transient retry retry_async"
        ),
    },
)
