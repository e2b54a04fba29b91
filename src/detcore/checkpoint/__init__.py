"""Save, restore and delete checkpoints; the manifest is written last and makes one exist.

A checkpoint exists once its ``manifest.json`` does. Files are written first, the manifest last
and atomically. Files without a manifest are invisible, and are removed when their trial starts
again.

Names are imported on first use: a worker needs few of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from detcore.lazy import lazy_names

if TYPE_CHECKING:
    from detcore._log.events import CheckpointDamaged
    from detcore.checkpoint._commit import describe_checkpoint
    from detcore.checkpoint._context import CheckpointContext
    from detcore.checkpoint._delete import delete_checkpoint
    from detcore.checkpoint._fields import MANIFEST_FILE
    from detcore.checkpoint._manifest import Manifest, has_manifest, list_committed, read_manifest
    from detcore.checkpoint._recover import (
        Repair,
        find_whole_checkpoint,
        recover_checkpoints,
        repair_checkpoint,
        settle_checkpoints,
    )
    from detcore.checkpoint._restore import (
        DownloadMode,
        copy_checkpoint,
        download_checkpoint,
        is_whole_copy,
    )
    from detcore.checkpoint._retention import apply_retention
    from detcore.checkpoint._verify import Fault, verify_checkpoint

__all__ = [
    "MANIFEST_FILE",
    "CheckpointContext",
    "CheckpointDamaged",
    "DownloadMode",
    "Fault",
    "Manifest",
    "Repair",
    "apply_retention",
    "copy_checkpoint",
    "delete_checkpoint",
    "describe_checkpoint",
    "download_checkpoint",
    "find_whole_checkpoint",
    "has_manifest",
    "is_whole_copy",
    "list_committed",
    "read_manifest",
    "recover_checkpoints",
    "repair_checkpoint",
    "settle_checkpoints",
    "verify_checkpoint",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "_commit": "describe_checkpoint",
        "_context": "CheckpointContext",
        "_delete": "delete_checkpoint",
        "_restore": "DownloadMode copy_checkpoint download_checkpoint is_whole_copy",
        "_manifest": "MANIFEST_FILE Manifest has_manifest list_committed read_manifest",
        "_recover": (
            "Repair find_whole_checkpoint recover_checkpoints repair_checkpoint settle_checkpoints"
        ),
        "_retention": "apply_retention",
        "_verify": "Fault verify_checkpoint",
        "detcore._log.events": "CheckpointDamaged",
    },
)
