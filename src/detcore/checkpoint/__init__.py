"""Save, restore and delete checkpoints.

A checkpoint exists if its ``manifest.json`` exists. All other files are written first, then the
manifest, atomically. Files without a manifest are ignored, and are removed when their trial starts
again.

Names are imported on first use, because a worker needs few of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from detcore.lazy import lazy_names

if TYPE_CHECKING:
    from detcore.checkpoint.checkpoint_context import CheckpointContext
    from detcore.checkpoint.delete import delete_checkpoint
    from detcore.checkpoint.manifest import Manifest, has_manifest, list_committed, read_manifest
    from detcore.checkpoint.manifest_fields import MANIFEST_FILE
    from detcore.checkpoint.prune import apply_retention
    from detcore.checkpoint.recover import (
        Repair,
        find_intact_checkpoint,
        reconcile_checkpoints,
        recover_checkpoints,
        repair_checkpoint,
    )
    from detcore.checkpoint.restore import (
        DownloadMode,
        copy_checkpoint,
        download_checkpoint,
        is_complete_copy,
    )
    from detcore.checkpoint.verify import Fault, verify_checkpoint
    from detcore.log.events import CheckpointDamaged

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
    "download_checkpoint",
    "find_intact_checkpoint",
    "has_manifest",
    "is_complete_copy",
    "list_committed",
    "read_manifest",
    "reconcile_checkpoints",
    "recover_checkpoints",
    "repair_checkpoint",
    "verify_checkpoint",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "checkpoint_context": "CheckpointContext",
        "delete": "delete_checkpoint",
        "restore": "DownloadMode copy_checkpoint download_checkpoint is_complete_copy",
        "manifest": "MANIFEST_FILE Manifest has_manifest list_committed read_manifest",
        "recover": (
            "Repair find_intact_checkpoint reconcile_checkpoints recover_checkpoints "
            "repair_checkpoint"
        ),
        "prune": "apply_retention",
        "verify": "Fault verify_checkpoint",
        "detcore.log.events": "CheckpointDamaged",
    },
)
