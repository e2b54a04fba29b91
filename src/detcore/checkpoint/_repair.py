"""Update the records to match the storage."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import TYPE_CHECKING

from detcore.checkpoint._commit import record_committed
from detcore.checkpoint._manifest import read_manifest
from detcore.checkpoint._verify import Fault, verify_checkpoint
from detcore.checkpoint._watch import TransferObserver

if TYPE_CHECKING:
    from detcore.database import CheckpointRecord, Database
    from detcore.storage import StorageBackend

__all__ = ["Repair", "repair_checkpoint"]


@dataclasses.dataclass(frozen=True, slots=True)
class Repair:
    """Result of checking a checkpoint.

    Attributes:
        state: Its recorded state now.
        faults: Faults of its files.
        strays: Files in its folder that do not belong to it.
        removed: The strays that were removed. Names that no checkpoint's file can have (``../x``,
            which some object stores accept) are left alone.
    """

    state: str
    faults: tuple[Fault, ...]
    strays: tuple[str, ...]
    removed: tuple[str, ...]


def repair_checkpoint(
    database: Database,
    storage: StorageBackend,
    record: CheckpointRecord,
    *,
    remove_strays: bool = False,
    observer: TransferObserver | None = None,
) -> Repair:
    """Read a checkpoint, and record whether it can be used.

    A complete one becomes COMPLETED, even if it was DAMAGED before and its files are back. An
    incomplete one becomes DAMAGED, so that no trial resumes from it.

    Args:
        database: Records of the checkpoint.
        storage: Storage of the checkpoint.
        record: Its record: COMPLETED, DAMAGED or PARTIALLY_DELETED.
        remove_strays: Whether to remove files that do not belong to the checkpoint.
        observer: Receives the progress of reading, or None.
    """
    found = verify_checkpoint(storage, record.uuid, observer=observer)
    strays = tuple(fault.name for fault in found if fault.is_stray)
    faults = tuple(fault for fault in found if not fault.is_stray)
    removed = _remove(storage, record.uuid, strays) if remove_strays else ()
    state = record.state
    if faults and state != "DAMAGED":
        database.checkpoint_damaged(record.uuid)
        state = "DAMAGED"
    elif not faults and state == "DAMAGED":
        record_committed(database, read_manifest(storage, record.uuid))
        state = "COMPLETED"
    return Repair(state, faults, strays, removed)


def _remove(storage: StorageBackend, uuid: str, names: Iterable[str]) -> tuple[str, ...]:
    from detcore.storage import is_safe_key

    removed = tuple(name for name in names if is_safe_key(f"{uuid}/{name}"))
    storage.delete(f"{uuid}/{name}" for name in removed)
    return removed
