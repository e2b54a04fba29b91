"""Save, restore and delete checkpoints; the manifest is written last and makes one exist.

A checkpoint exists once its ``manifest.json`` does. Files are written first, the manifest last
and atomically. Files without a manifest are invisible, and are removed when their trial starts
again.

Names are imported on first use: a worker needs few of them.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from detcore.checkpoint._async import SaveProgress
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
    from detcore.checkpoint._records import CheckpointRecords, RecoveryRecords
    from detcore.checkpoint._recover import (
        Repair,
        UnsettledCheckpoint,
        describe_checkpoint,
        recover_checkpoints,
        repair_checkpoint,
        settle_checkpoints,
    )
    from detcore.checkpoint._retention import (
        RetentionPlan,
        RetentionPolicy,
        SavedCheckpoint,
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

_HOMES = {
    "CheckpointContext": "_context",
    "CheckpointOwner": "_context",
    "CheckpointRecords": "_records",
    "CheckpointSource": "_source",
    "DownloadMode": "_download",
    "Fault": "_verify",
    "MANIFEST_FILE": "_manifest",
    "METADATA_FILE": "_manifest",
    "Manifest": "_manifest",
    "RecordedPlace": "_source",
    "RecoveryRecords": "_records",
    "Repair": "_recover",
    "RetentionPlan": "_retention",
    "RetentionPolicy": "_retention",
    "SaveProgress": "_async",
    "SaveTimes": "_save",
    "SavedCheckpoint": "_retention",
    "TransferBars": "_bars",
    "TransferLines": "_bars",
    "TransferObserver": "_watch",
    "UnsettledCheckpoint": "_recover",
    "apply_retention": "_retention",
    "choose_checkpoints": "_retention",
    "copy_checkpoint": "_copy",
    "delete_checkpoint": "_delete",
    "describe_checkpoint": "_recover",
    "download_checkpoint": "_download",
    "find_place": "_source",
    "find_source": "_source",
    "has_manifest": "_manifest",
    "is_whole_copy": "_copy",
    "list_committed": "_manifest",
    "open_recorded": "_source",
    "pin_source": "_source",
    "plan_retention": "_retention",
    "read_manifest": "_manifest",
    "recover_checkpoints": "_recover",
    "repair_checkpoint": "_recover",
    "settle_checkpoints": "_recover",
    "verify_checkpoint": "_verify",
    "watch_transfers": "_bars",
}


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'detcore.checkpoint' has no attribute {name!r}")
    return getattr(importlib.import_module(f"detcore.checkpoint.{home}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
