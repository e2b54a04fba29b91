"""Store checkpoint files: the `StorageBackend` protocol, and folders of this machine.

Any other URL is opened by fsspec, whose back end is in the distribution detcore-storage.
"""

from typing import TYPE_CHECKING

from detcore.contract.storage import (
    Capabilities,
    Entry,
    FileDigest,
    Pair,
    Progress,
    StorageBackend,
)
from detcore.lazy import lazy_names
from detcore.storage.file_digests import (
    ByteSink,
    Digester,
    copy_stream,
    digest_bytes,
    digest_file,
    run_all,
    write_all,
)
from detcore.storage.local_storage import LocalStorage, scratch_folder
from detcore.storage.storage_faults import is_full, is_left_over, translated, try_out
from detcore.storage.storage_keys import check_key, is_safe_key
from detcore.storage.storage_opening import open_storage

if TYPE_CHECKING:
    from detcore.storage.recorded_storage import RecordedPlace, find_place, open_recorded
    from detcore.storage.transfer_progress import TransferObserver, watch_transfers, watched

__all__ = [
    "ByteSink",
    "Capabilities",
    "Digester",
    "Entry",
    "FileDigest",
    "LocalStorage",
    "Pair",
    "Progress",
    "RecordedPlace",
    "StorageBackend",
    "TransferObserver",
    "check_key",
    "copy_stream",
    "digest_bytes",
    "digest_file",
    "find_place",
    "is_full",
    "is_left_over",
    "is_safe_key",
    "open_recorded",
    "open_storage",
    "run_all",
    "scratch_folder",
    "translated",
    "try_out",
    "watch_transfers",
    "watched",
    "write_all",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "transfer_progress": "TransferObserver watch_transfers watched",
        "recorded_storage": "RecordedPlace find_place open_recorded",
    },
)
