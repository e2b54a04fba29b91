"""Recover checkpoints that an interrupted process left unfinished, and repair damaged ones."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from detcore.checkpoint.commit import CheckpointRecords, record_committed
from detcore.checkpoint.delete import finish_partial_deletion, remove_files
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
    """Recover the unfinished checkpoints of a trial whose process has exited.

    An interrupted save becomes COMPLETED if its manifest exists. Otherwise its files are removed.
    Interrupted deletions, full or partial, are finished. A checkpoint whose manifest cannot be read
    becomes DAMAGED, and its files stay.

    Call it only while no process works on the trial, or with `uuids` that were recorded before the
    process exited: these cannot belong to a process that started later. Idempotent.

    Args:
        database: Records of the checkpoints.
        storage: The trial's storage. Checkpoints in other storages are not changed.
        trial_id: The trial.
        uuids: The checkpoints to recover. Default: all checkpoints of the trial.
        records: Receives the changes. Default: the database.

    Returns:
        UUIDs of the checkpoints that are complete.

    Raises:
        StorageError: If the storage's directory is missing.
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
    """Recover unfinished checkpoints of one trial; see `recover_checkpoints`."""
    if not unsettled:
        return []
    _check_storage_exists(storage)
    completed = []
    for checkpoint in unsettled:
        if checkpoint.state == "DELETING" or not has_manifest(storage, checkpoint.uuid):
            remove_files(storage, checkpoint.uuid)
            records.record_checkpoint(events.CheckpointDeleted(uuid=checkpoint.uuid, resources={}))
            continue
        try:
            manifest = read_manifest(storage, checkpoint.uuid)
        except CheckpointCorruptError as error:
            # The trial can resume from another checkpoint, and this checkpoint may be repaired.
            import logging

            logging.getLogger("detcore").warning("%s", error)
            records.record_checkpoint(events.CheckpointDamaged(uuid=checkpoint.uuid))
            continue
        if checkpoint.state == "ACTIVE":
            record_committed(records, storage, manifest)
            completed.append(checkpoint.uuid)
        else:
            finish_partial_deletion(storage, manifest, checkpoint.resources)
    return completed


def _check_storage_exists(storage: StorageBackend) -> None:
    root = storage.direct_path("")
    if root is not None and not root.is_dir():
        raise StorageError(
            f"the checkpoint storage {root} is missing.\n"
            "It may contain a complete checkpoint of this trial.\n"
            "Mount it, or restore the directory, then start again."
        )


def find_intact_checkpoint(
    database: Database, storage: StorageBackend, trial_id: int, *, reads_files: bool
) -> CheckpointRecord | None:
    """Return the newest intact checkpoint, from which a trial resumes.

    Newer checkpoints that are damaged or missing are recorded as DAMAGED, with a warning.

    Args:
        database: Records of the checkpoints.
        storage: The trial's storage. Checkpoints in other storages are not checked.
        trial_id: The trial; no process works on it.
        reads_files: Whether to read files in local storage. Otherwise, and in remote storage, only
            names and sizes are compared, because a restore reads the files anyway.

    Returns:
        The checkpoint, or None if the trial has no checkpoint.

    Raises:
        CheckpointCorruptError: If all of the trial's checkpoints are damaged. Nothing is recorded,
            because the storage itself may be missing.
    """
    damaged: list[tuple[str, Fault]] = []
    for record in database.list_resume_checkpoints(trial_id):
        faults: list[Fault] = []
        if record.storage_url == storage.url:
            is_read = reads_files and storage.direct_path(record.uuid) is not None
            all_faults = verify_checkpoint(storage, record.uuid, reads_files=is_read)
            faults = [fault for fault in all_faults if not fault.is_stray]
        if not faults:
            _record_damaged(database, damaged, record)
            return record
        damaged.append((record.uuid, faults[0]))
    if not damaged:
        return None
    uuid, fault = damaged[0]
    raise CheckpointCorruptError(
        f"trial {trial_id} cannot resume: all of its {len(damaged)} checkpoints in {storage.url} "
        f"are damaged. The newest is {uuid}: {fault}.\n"
        "Restore the files and start again, or archive the experiment to train from the start:\n"
        "  detcore experiment archive ID"
    )


def _record_damaged(
    database: Database, damaged: Sequence[tuple[str, Fault]], whole: CheckpointRecord
) -> None:
    """Record damaged checkpoints, and log which older checkpoint is used instead."""
    for uuid, fault in damaged:
        import logging

        database.record_checkpoint(events.CheckpointDamaged(uuid=uuid))
        logging.getLogger("detcore").warning(
            "checkpoint %s is damaged: %s. "
            "The trial resumes from the previous checkpoint: %s, %d batches",
            uuid, fault, whole.uuid, whole.steps_completed,
        )  # fmt: skip


@dataclasses.dataclass(frozen=True, slots=True)
class Repair:
    """Result of checking a checkpoint.

    Attributes:
        state: The recorded state after the check.
        faults: Faults of the checkpoint's files.
        strays: Files in its directory that do not belong to it.
        removed: The strays that were removed. Unsafe names (``../x``, which some object stores
            accept) are not removed.
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

    A DAMAGED checkpoint whose files are intact again becomes COMPLETED. A checkpoint with faults
    becomes DAMAGED, so that no trial resumes from it.

    Args:
        database: Records of the checkpoint.
        storage: Storage of the checkpoint.
        record: Its record, which is COMPLETED, DAMAGED or PARTIALLY_DELETED.
        remove_strays: Whether to remove files that do not belong to the checkpoint.
        observer: Receives the progress of reading, or None.
    """
    all_faults = verify_checkpoint(storage, record.uuid, observer=observer)
    strays = tuple(fault for fault in all_faults if fault.is_stray)
    faults = tuple(fault for fault in all_faults if not fault.is_stray)
    removed: tuple[str, ...] = ()
    if remove_strays:
        removed = tuple(
            stray.name for stray in strays if is_safe_key(f"{record.uuid}/{stray.name}")
        )
        storage.delete(f"{record.uuid}/{name}" for name in removed)
    state = record.state
    if faults and state != "DAMAGED":
        database.record_checkpoint(events.CheckpointDamaged(uuid=record.uuid))
        state = "DAMAGED"
    elif not faults and state == "DAMAGED":
        record_committed(database, storage, read_manifest(storage, record.uuid))
        state = "COMPLETED"
    return Repair(state, faults, strays, removed)
