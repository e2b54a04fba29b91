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
    from detcore.checkpoint._async import SaveProgress
    from detcore.checkpoint._bars import watch_transfers
    from detcore.checkpoint._commit import describe_checkpoint
    from detcore.checkpoint._context import CheckpointContext
    from detcore.checkpoint._delete import delete_checkpoint
    from detcore.checkpoint._manifest import MANIFEST_FILE, Manifest, list_committed, read_manifest
    from detcore.checkpoint._recover import (
        UnsettledCheckpoint,
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
    from detcore.checkpoint._retention import (
        RetentionPlan,
        RetentionPolicy,
        apply_retention,
        choose_checkpoints,
        plan_retention,
    )
    from detcore.checkpoint._save import SaveTimes
    from detcore.checkpoint._source import (
        CheckpointSource,
        RecordedPlace,
        find_place,
        find_source,
        open_recorded,
        pin_source,
    )
    from detcore.checkpoint._transfer import TransferObserver
    from detcore.checkpoint._verify import Fault, verify_checkpoint

__all__ = [
    "MANIFEST_FILE",
    "CheckpointContext",
    "CheckpointDamaged",
    "CheckpointSource",
    "DownloadMode",
    "Fault",
    "Manifest",
    "RecordedPlace",
    "RetentionPlan",
    "RetentionPolicy",
    "SaveProgress",
    "SaveTimes",
    "TransferObserver",
    "UnsettledCheckpoint",
    "apply_retention",
    "choose_checkpoints",
    "copy_checkpoint",
    "delete_checkpoint",
    "describe_checkpoint",
    "download_checkpoint",
    "find_place",
    "find_source",
    "is_whole_copy",
    "list_committed",
    "open_recorded",
    "pin_source",
    "plan_retention",
    "read_manifest",
    "recover_checkpoints",
    "repair_checkpoint",
    "settle_checkpoints",
    "verify_checkpoint",
    "watch_transfers",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "_async": "SaveProgress",
        "_bars": "watch_transfers",
        "_commit": "describe_checkpoint",
        "_context": "CheckpointContext",
        "_delete": "delete_checkpoint",
        "_restore": "DownloadMode copy_checkpoint download_checkpoint is_whole_copy",
        "_manifest": "MANIFEST_FILE Manifest list_committed read_manifest",
        "_recover": (
            "UnsettledCheckpoint recover_checkpoints repair_checkpoint settle_checkpoints"
        ),
        "_retention": (
            "RetentionPlan RetentionPolicy apply_retention choose_checkpoints plan_retention"
        ),
        "_save": "SaveTimes",
        "_source": "CheckpointSource RecordedPlace find_place find_source open_recorded pin_source",
        "_transfer": "TransferObserver",
        "_verify": "Fault verify_checkpoint",
        "detcore._log.events": "CheckpointDamaged",
    },
)
