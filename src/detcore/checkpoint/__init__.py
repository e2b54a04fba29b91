"""Checkpoints: a manifest, the rule that it is written last, and what follows from it.

A checkpoint exists once its ``manifest.json`` does. Files are written first, the manifest last
and atomically; what has no manifest is invisible, and is removed when its trial starts again.
"""

from detcore.checkpoint._bars import TransferBars, TransferLines, watch_transfers
from detcore.checkpoint._context import CheckpointContext, CheckpointOwner
from detcore.checkpoint._copy import copy_checkpoint, is_whole_copy
from detcore.checkpoint._delete import delete_checkpoint
from detcore.checkpoint._download import DownloadMode, download_checkpoint
from detcore.checkpoint._manifest import (
    MANIFEST_FILE,
    METADATA_FILE,
    Manifest,
    has_manifest,
    list_committed,
    read_manifest,
)
from detcore.checkpoint._outstanding import SaveProgress
from detcore.checkpoint._place import RecordedPlace, find_place, open_recorded
from detcore.checkpoint._records import CheckpointRecords, RecoveryRecords
from detcore.checkpoint._recover import (
    UnsettledCheckpoint,
    describe_checkpoint,
    recover_checkpoints,
    settle_checkpoints,
)
from detcore.checkpoint._repair import Repair, repair_checkpoint
from detcore.checkpoint._retention import (
    RetentionPlan,
    RetentionPolicy,
    SavedCheckpoint,
    apply_retention,
    choose_checkpoints,
    plan_retention,
)
from detcore.checkpoint._save import SaveTimes
from detcore.checkpoint._source import CheckpointSource, find_source, pin_source
from detcore.checkpoint._verify import Fault, verify_checkpoint
from detcore.checkpoint._watch import TransferObserver

__all__ = [
    "MANIFEST_FILE",
    "METADATA_FILE",
    "CheckpointContext",
    "CheckpointOwner",
    "CheckpointRecords",
    "CheckpointSource",
    "DownloadMode",
    "Fault",
    "Manifest",
    "RecordedPlace",
    "RecoveryRecords",
    "Repair",
    "RetentionPlan",
    "RetentionPolicy",
    "SaveProgress",
    "SaveTimes",
    "SavedCheckpoint",
    "TransferBars",
    "TransferLines",
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
    "has_manifest",
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
