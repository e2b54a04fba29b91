"""Store checkpoint files: the `StorageBackend` protocol, and the back end for local directories.

Other URLs are opened by fsspec, whose back end is in the distribution detcore-storage.
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
from detcore.storage.local_storage import LocalStorage, scratch_directory
from detcore.storage.storage_faults import (
    is_stale_probe,
    is_storage_full,
    probe_round_trip,
    translate_errors,
)
from detcore.storage.storage_keys import check_key, is_safe_key
from detcore.storage.storage_opening import open_storage

if TYPE_CHECKING:
    from detcore.storage.recorded_storage import (
        RecordedStorage,
        find_recorded_storage,
        open_recorded,
    )
    from detcore.storage.transfer_progress import TransferObserver, track_transfer, watch_transfers

__all__ = [
    "ByteSink",
    "Capabilities",
    "Digester",
    "Entry",
    "FileDigest",
    "LocalStorage",
    "Pair",
    "Progress",
    "RecordedStorage",
    "StorageBackend",
    "TransferObserver",
    "check_key",
    "copy_stream",
    "digest_bytes",
    "digest_file",
    "find_recorded_storage",
    "is_safe_key",
    "is_stale_probe",
    "is_storage_full",
    "open_recorded",
    "open_storage",
    "probe_round_trip",
    "run_all",
    "scratch_directory",
    "track_transfer",
    "translate_errors",
    "watch_transfers",
    "write_all",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "transfer_progress": "TransferObserver watch_transfers track_transfer",
        "recorded_storage": "RecordedStorage find_recorded_storage open_recorded",
    },
)
