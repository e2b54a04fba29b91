"""Find the checkpoint from which an experiment starts; recover checkpoints of killed runs."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from detcore.checkpoint import has_manifest, recover_checkpoints
from detcore.contract.errors import NotFoundError, RunError, UnsafePathError
from detcore.log.events import CheckpointCommitted, CheckpointEvent
from detcore.plugins.delivery import append_to_killed
from detcore.storage import find_recorded_storage

if TYPE_CHECKING:
    from detcore.contract.values import TrialSettings
    from detcore.environment import Environment
    from detcore.plugins import PluginManager
    from detcore.records import Database, TrialRecord
    from detcore.storage import StorageBackend


_UUID, _TRIAL = "source_checkpoint_uuid", "source_trial_id"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointSource:
    """A checkpoint to start from.

    Attributes:
        checkpoint: Its UUID, or the absolute path of a directory.
        storage: Specification of its storage, which may contain secrets. None for the experiment's
            storage, and for a directory.
    """

    checkpoint: str
    storage: str | Mapping[str, Any] | None = None

    @property
    def searcher_fields(self) -> dict[str, str | None]:
        """Fields of ``searcher`` with its UUID, because a trial's latest checkpoint may change."""
        return {_TRIAL: None, _UUID: self.checkpoint}


def find_source(
    settings: TrialSettings,
    *,
    database: Database,
    storage: StorageBackend,
    environment: Environment,
    plugins: PluginManager,
) -> CheckpointSource | None:
    """Find the checkpoint that the section ``searcher`` of an experiment file names.

    It is looked up in the experiment's storage first, then at its recorded location.

    Args:
        settings: Settings that may name a checkpoint or a trial.
        database: The records.
        storage: The experiment's storage.
        environment: Its home directory is the default location of checkpoints.
        plugins: Provide storage types.

    Returns:
        The checkpoint, or None if the trials start without one.

    Raises:
        RunError: If the trial, checkpoint or directory does not exist.
    """
    if settings.source_trial_id is not None:
        name = f"searcher.{_TRIAL}: {settings.source_trial_id}"
        uuid = _find_latest_checkpoint(database, settings.source_trial_id, name)
    elif settings.source_checkpoint_uuid is not None:
        uuid = settings.source_checkpoint_uuid
        name = f"searcher.{_UUID}: {uuid}"
        if "/" in uuid:
            return _check_directory(uuid, name)
    else:
        return None
    try:
        if has_manifest(storage, uuid):
            return CheckpointSource(checkpoint=uuid)
        record = database.get_checkpoint(uuid)
    except (UnsafePathError, NotFoundError) as error:
        raise RunError(
            f"{name}\nThis checkpoint is not in {storage.url}: {error}\n"
            "Set the UUID of a checkpoint, or the absolute path of a downloaded checkpoint's "
            "directory."
        ) from error
    if has_manifest(storage, record.uuid):
        return CheckpointSource(checkpoint=record.uuid)
    location = find_recorded_storage(
        record, database=database, home=environment.home, plugins=plugins
    )
    with contextlib.closing(location.open()) as recorded_storage:
        if has_manifest(recorded_storage, record.uuid):
            return CheckpointSource(checkpoint=record.uuid, storage=location.spec)
    raise RunError(
        f"{name}\nCheckpoint {record.uuid} is recorded as {record.state}, but it is not in "
        f"{record.storage_url}.\n"
        "It was deleted, or its save was not finished. List checkpoints with:  detcore checkpoint "
        "list"
    )


def _find_latest_checkpoint(database: Database, trial_id: int, name: str) -> str:
    try:
        database.get_trial(trial_id)
    except NotFoundError as error:
        raise RunError(f"{name}\n{error}") from error
    latest = database.latest_checkpoint(trial_id)
    if latest is None:
        raise RunError(
            f"{name}\nTrial {trial_id} has no checkpoint to start from.\n"
            "Wait until it has saved a checkpoint, or set another trial."
        )
    return str(latest.uuid)


def _check_directory(path: str, name: str) -> CheckpointSource:
    folder = Path(path)
    if not folder.is_absolute():
        raise RunError(
            f"{name}\nThe path must be absolute: trials run in the directory of their code.\n"
            f"Did you mean {folder.absolute()}?"
        )
    if not folder.is_dir():
        raise RunError(
            f"{name}\nThe directory does not exist.\n"
            "Download the checkpoint with:  detcore checkpoint download UUID"
        )
    return CheckpointSource(checkpoint=str(folder))


def recover_trial(
    database: Database,
    storage: StorageBackend,
    trial: TrialRecord,
    *,
    uuids: Collection[str] | None = None,
) -> None:
    """Recover the unfinished checkpoints of a trial's killed processes, and notify its observers.

    Committed but unreported checkpoints are appended to the log of the killed run, if it has
    observers, before they are recorded. If this process is killed in between, the log records them,
    because every reader ingests it first.

    Args:
        database: Records of the checkpoints.
        storage: The trial's storage.
        trial: The trial, whose process has exited.
        uuids: The checkpoints to recover. Default: all checkpoints of the trial.
    """
    records = _LogThenRecord(database, trial)
    recover_checkpoints(database, storage, trial.id, uuids=uuids, records=records)


@dataclasses.dataclass(frozen=True, slots=True)
class _LogThenRecord:
    """Appends the complete checkpoints of a killed run to its log, then records them."""

    database: Database
    trial: TrialRecord

    def record_checkpoint(
        self, change: CheckpointEvent, *, trial_id: int | None = None, force: bool = False
    ) -> None:
        """Record a change of a checkpoint's state."""
        if isinstance(change, CheckpointCommitted):
            append_to_killed(self.database, self.trial, change)
        self.database.record_checkpoint(change, trial_id=trial_id, force=force)
