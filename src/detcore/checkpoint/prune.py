"""Delete the checkpoints of an experiment that its policy does not keep."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from detcore.checkpoint.delete import delete_checkpoint
from detcore.checkpoint.verify import verify_checkpoint
from detcore.contract.errors import CheckpointStateError
from detcore.records import RetentionPlan, plan_retention

if TYPE_CHECKING:
    from detcore.records import Database, RetentionPolicy
    from detcore.storage import StorageBackend


def apply_retention(
    database: Database,
    storage: StorageBackend,
    experiment_id: int,
    *,
    policy: RetentionPolicy | None = None,
    on_deleted: Callable[[str], None] | None = None,
) -> RetentionPlan:
    """Delete the checkpoints of an experiment that the policy does not keep.

    Checkpoints with missing files are not counted. The process may be killed at any moment: each
    deletion is recorded before files are removed, and the next run continues it. Idempotent.
    Checkpoints in other storages are not deleted.

    Args:
        database: The records; call `detcore.records.ingest_event_logs` first.
        storage: The experiment's storage.
        experiment_id: The experiment.
        policy: Checkpoints to keep. Default: the policy in the experiment's configuration.
        on_deleted: Called with each UUID after its deletion.

    Returns:
        The checkpoints that were kept and deleted.

    Raises:
        NotFoundError: If the experiment does not exist.
        StorageError: If a file could not be deleted; the next run finishes the deletion.
    """
    missing: set[str] = set()
    while True:
        plan = plan_retention(
            database, experiment_id, policy=policy, storage_url=storage.url, missing=missing
        )
        lost = _find_missing(database, storage, plan)
        if not lost:
            break
        missing |= lost
    reasons, deleted = dict(plan.kept), []
    for uuid in plan.deleted:
        try:
            delete_checkpoint(storage, uuid, database=database)
        except CheckpointStateError as error:  # it was registered after the plan was created
            reasons[uuid] = (str(error).partition("\n")[0],)
            continue
        deleted.append(uuid)
        if on_deleted is not None:
            on_deleted(uuid)
    return RetentionPlan(reasons, tuple(deleted))


def _find_missing(database: Database, storage: StorageBackend, plan: RetentionPlan) -> set[str]:
    """Return the kept checkpoints with missing files, for trials that lose other checkpoints."""
    losing = {database.get_checkpoint(uuid).trial_id for uuid in plan.deleted}
    records = (database.get_checkpoint(uuid) for uuid in plan.kept) if losing else ()
    return {
        record.uuid
        for record in records
        if record.trial_id in losing
        and record.storage_url == storage.url
        and any(
            not fault.is_stray
            for fault in verify_checkpoint(storage, record.uuid, reads_files=False)
        )
    }
