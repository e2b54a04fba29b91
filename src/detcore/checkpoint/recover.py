"""Settle the checkpoints that an interrupted process left unfinished; repair damaged ones."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from detcore.checkpoint.commit import CheckpointRecords, record_committed
from detcore.checkpoint.delete import finish_part, remove_files
from detcore.checkpoint.manifest import has_manifest, read_manifest
from detcore.checkpoint.verify import Fault, verify_checkpoint
from detcore.contract.errors import CheckpointCorruptError, StorageError
from detcore.log import events
from detcore.storage import StorageBackend, is_safe_key

if TYPE_CHECKING:
    from detcore.contract.values import UnfinishedCheckpoint
    from detcore.records import CheckpointRecord, Database
    from detcore.storage import TransferObserver


_UNSETTLED = ("ACTIVE", "DELETING", "PARTIALLY_DELETED")


def recover_checkpoints(
    database: Database,
    storage: StorageBackend,
    trial_id: int,
    *,
    uuids: Collection[str] | None = None,
    records: CheckpointRecords | None = None,
) -> list[str]:
    """Settle the checkpoints of a trial whose process is gone.

    A save that was interrupted becomes COMPLETED if its manifest exists; otherwise its files are
    removed. Interrupted deletions, full or partial, are finished. A checkpoint whose manifest
    cannot be read becomes DAMAGED, and its files stay.

    Call it only while no process works on the trial, or with `uuids` that were recorded before the
    process was found gone, since those cannot belong to a process that started later. Idempotent.

    Args:
        database: Records of the checkpoints.
        storage: The trial's storage; checkpoints recorded elsewhere are left alone.
        trial_id: The trial.
        uuids: Only these checkpoints; None for all of the trial.
        records: Receives the changes; default: the database.

    Returns:
        UUIDs of the checkpoints that turned out to be complete.

    Raises:
        StorageError: If the storage's folder is missing, so that nothing can be determined.
    """
    unsettled = [
        record
        for record in database.list_checkpoints(trial_id=trial_id, states=_UNSETTLED)
        if record.storage_url == storage.url and (uuids is None or record.uuid in uuids)
    ]
    return reconcile_checkpoints(records or database, storage, unsettled)


def reconcile_checkpoints(
    records: CheckpointRecords,
    storage: StorageBackend,
    unsettled: Sequence[UnfinishedCheckpoint | CheckpointRecord],
) -> list[str]:
    """Settle checkpoints of one trial in its storage; see `recover_checkpoints`."""
    if not unsettled:
        return []
    _check_present(storage)
    completed = []
    for found in unsettled:
        if found.state == "DELETING" or not has_manifest(storage, found.uuid):
            remove_files(storage, found.uuid)
            records.record_checkpoint(events.CheckpointDeleted(uuid=found.uuid, resources={}))
            continue
        try:
            manifest = read_manifest(storage, found.uuid)
        except CheckpointCorruptError as error:
            # The trial can resume from its other checkpoints, and this one may be repaired.
            import logging

            logging.getLogger("detcore").warning("%s", error)
            records.record_checkpoint(events.CheckpointDamaged(uuid=found.uuid))
            continue
        if found.state == "ACTIVE":
            record_committed(records, storage, manifest)
            completed.append(found.uuid)
        else:
            finish_part(storage, manifest, found.resources)
    return completed


def _check_present(storage: StorageBackend) -> None:
    root = storage.direct_path("")
    if root is not None and not root.is_dir():
        raise StorageError(
            f"the checkpoint storage {root} is not there.\n"
            "An interrupted checkpoint of this trial has to be looked at first, and it may be "
            "whole.\nMount it, or put the folder back, then start again."
        )


def find_intact_checkpoint(
    database: Database, storage: StorageBackend, trial_id: int, *, reads_files: bool
) -> CheckpointRecord | None:
    """Return the checkpoint that a trial resumes from: the newest that is whole.

    Newer checkpoints that are damaged or missing are recorded as DAMAGED, with a warning.

    Args:
        database: Records of the checkpoints.
        storage: The trial's storage. Checkpoints recorded elsewhere are taken as they are.
        trial_id: The trial; no process works on it.
        reads_files: Whether files on this machine are read. Else, and in other storages, only names
            and sizes are compared: a restore reads the files anyway.

    Returns:
        The checkpoint; None if the trial has none.

    Raises:
        CheckpointCorruptError: If none of the trial's checkpoints is whole. Nothing is recorded,
            because the storage itself may be missing.
    """
    damaged: list[tuple[str, Fault]] = []
    for record in database.list_resume_checkpoints(trial_id):
        faults: list[Fault] = []
        if record.storage_url == storage.url:
            is_read = reads_files and storage.direct_path(record.uuid) is not None
            found = verify_checkpoint(storage, record.uuid, reads_files=is_read)
            faults = [fault for fault in found if not fault.is_stray]
        if not faults:
            _record_damaged(database, damaged, record)
            return record
        damaged.append((record.uuid, faults[0]))
    if not damaged:
        return None
    uuid, fault = damaged[0]
    raise CheckpointCorruptError(
        f"trial {trial_id} cannot resume: none of its {len(damaged)} checkpoints in {storage.url} "
        f"is whole. The newest is {uuid}: {fault}.\n"
        "Bring the files back and start again, or archive the experiment to train from the start:\n"
        "  detcore experiment archive ID"
    )


def _record_damaged(
    database: Database, damaged: Sequence[tuple[str, Fault]], whole: CheckpointRecord
) -> None:
    """Record damaged checkpoints, and name the older one that is used instead."""
    for uuid, fault in damaged:
        import logging

        database.record_checkpoint(events.CheckpointDamaged(uuid=uuid))
        logging.getLogger("detcore").warning(
            "checkpoint %s is damaged: %s. The trial resumes from the one before: %s, %d batches",
            uuid, fault, whole.uuid, whole.steps_completed,
        )  # fmt: skip


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
    strays: tuple[Fault, ...]
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
    strays = tuple(fault for fault in found if fault.is_stray)
    faults = tuple(fault for fault in found if not fault.is_stray)
    removed: tuple[str, ...] = ()
    if remove_strays:
        removed = tuple(each.name for each in strays if is_safe_key(f"{record.uuid}/{each.name}"))
        storage.delete(f"{record.uuid}/{name}" for name in removed)
    state = record.state
    if faults and state != "DAMAGED":
        database.record_checkpoint(events.CheckpointDamaged(uuid=record.uuid))
        state = "DAMAGED"
    elif not faults and state == "DAMAGED":
        record_committed(database, storage, read_manifest(storage, record.uuid))
        state = "COMPLETED"
    return Repair(state, faults, strays, removed)
