"""Checkpoints: a manifest, the rule that it is written last, and what follows from it.

A checkpoint exists once its ``manifest.json`` does. Files are written first, the manifest last
and atomically; what has no manifest is invisible, and is removed when its trial starts again.
"""

from detcore.checkpoint._context import CheckpointContext, CheckpointOwner
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
from detcore.checkpoint._recover import recover_checkpoints
from detcore.checkpoint._repair import Repair, repair_checkpoint
from detcore.checkpoint._source import CheckpointSource, find_source, pin_source
from detcore.checkpoint._verify import Fault, verify_checkpoint

__all__ = [
    "MANIFEST_FILE",
    "METADATA_FILE",
    "CheckpointContext",
    "CheckpointOwner",
    "CheckpointSource",
    "DownloadMode",
    "Fault",
    "Manifest",
    "Repair",
    "delete_checkpoint",
    "download_checkpoint",
    "find_source",
    "has_manifest",
    "list_committed",
    "pin_source",
    "read_manifest",
    "recover_checkpoints",
    "repair_checkpoint",
    "verify_checkpoint",
]
