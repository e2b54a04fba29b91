"""Settle the checkpoints that an interrupted process left unfinished."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from detcore.checkpoint._commit import record_committed
from detcore.checkpoint._delete import finish_part, remove_files
from detcore.checkpoint._manifest import has_manifest, read_manifest
from detcore.errors import CheckpointCorruptError, StorageError

if TYPE_CHECKING:
    from detcore.database import RecoveryRecords
    from detcore.storage import StorageBackend

__all__ = ["recover_checkpoints"]


_UNSETTLED = ("ACTIVE", "DELETING", "PARTIALLY_DELETED")


def recover_checkpoints(
    database: RecoveryRecords,
    storage: StorageBackend,
    trial_id: int,
    *,
    uuids: Collection[str] | None = None,
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

    Returns:
        UUIDs of the checkpoints that turned out to be complete.

    Raises:
        StorageError: If the storage's folder is missing, so that nothing can be determined.
    """
    records = database.list_checkpoints(trial_id=trial_id, states=_UNSETTLED)
    records = [
        record
        for record in records
        if record.storage_url == storage.url and (uuids is None or record.uuid in uuids)
    ]
    if not records:
        return []
    _check_present(storage)
    completed = []
    for record in records:
        if record.state == "DELETING" or not has_manifest(storage, record.uuid):
            remove_files(storage, record.uuid)
            database.checkpoint_deleted(record.uuid)
            continue
        try:
            manifest = read_manifest(storage, record.uuid)
        except CheckpointCorruptError as error:
            # The trial can resume from its other checkpoints, and this one may be repaired.
            import logging

            logging.getLogger("detcore").warning("%s", error)
            database.checkpoint_damaged(record.uuid)
            continue
        if record.state == "ACTIVE":
            record_committed(database, manifest)
            completed.append(record.uuid)
        else:
            finish_part(storage, manifest, record.resources)
    return completed


def _check_present(storage: StorageBackend) -> None:
    root = storage.direct_path("")
    if root is not None and not root.is_dir():
        raise StorageError(
            f"the checkpoint storage {root} is not there.\n"
            "An interrupted checkpoint of this trial has to be looked at first, and it may be "
            "whole.\nMount it, or put the folder back, then start again."
        )
