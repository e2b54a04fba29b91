"""Find the checkpoint that an experiment names to start from; settle what killed runs left."""

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
        checkpoint: Its UUID, or the absolute path of a folder.
        storage: Specification of its storage, which may contain secrets; None for the experiment's
            own storage, and for a folder.
    """

    checkpoint: str
    storage: str | Mapping[str, Any] | None = None

    @property
    def searcher_fields(self) -> dict[str, str | None]:
        """Fields of ``searcher`` that name it: a trial's latest one may be another one later."""
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
        settings: They name it.
        database: The records.
        storage: The experiment's storage.
        environment: Location of default checkpoints.
        plugins: Registry of storage types.

    Returns:
        The checkpoint, or None if the trials start without one.

    Raises:
        RunError: If the trial, checkpoint or folder does not exist.
    """
    if settings.source_trial_id is not None:
        name = f"searcher.{_TRIAL}: {settings.source_trial_id}"
        wanted = _latest_of(database, settings.source_trial_id, name)
    elif settings.source_checkpoint_uuid is not None:
        wanted = settings.source_checkpoint_uuid
        name = f"searcher.{_UUID}: {wanted}"
        if "/" in wanted:
            return _folder(wanted, name)
    else:
        return None
    try:
        if has_manifest(storage, wanted):
            return CheckpointSource(checkpoint=wanted)
        record = database.get_checkpoint(wanted)
    except (UnsafePathError, NotFoundError) as error:
        raise RunError(
            f"{name}\nThere is no such checkpoint in {storage.url}, and: {error}\n"
            "Give the UUID of a checkpoint, or the absolute path of a folder that it was "
            "downloaded to."
        ) from error
    if has_manifest(storage, record.uuid):
        return CheckpointSource(checkpoint=record.uuid)
    place = find_recorded_storage(record, database=database, home=environment.home, plugins=plugins)
    with contextlib.closing(place.open()) as other:
        if has_manifest(other, record.uuid):
            return CheckpointSource(checkpoint=record.uuid, storage=place.spec)
    raise RunError(
        f"{name}\nCheckpoint {record.uuid} is recorded as {record.state}, but it is not in "
        f"{record.storage_url}.\n"
        "It was deleted, or never finished. List those there are: detcore checkpoint list"
    )


def _latest_of(database: Database, trial_id: int, name: str) -> str:
    try:
        database.get_trial(trial_id)
    except NotFoundError as error:
        raise RunError(f"{name}\n{error}") from error
    latest = database.latest_checkpoint(trial_id)
    if latest is None:
        raise RunError(
            f"{name}\nTrial {trial_id} has no checkpoint to start from.\n"
            "Let it run until it has saved one, or name another trial."
        )
    return str(latest.uuid)


def _folder(path: str, name: str) -> CheckpointSource:
    folder = Path(path)
    if not folder.is_absolute():
        raise RunError(
            f"{name}\nThis is a path, but not an absolute one.\n"
            f"Trials run in the folder of their code; write {folder.absolute()}, if it is that."
        )
    if not folder.is_dir():
        raise RunError(
            f"{name}\nThere is no such folder.\n"
            "Give the folder that a checkpoint was downloaded to: detcore checkpoint download UUID"
        )
    return CheckpointSource(checkpoint=str(folder))


def recover_trial(
    database: Database,
    storage: StorageBackend,
    trial: TrialRecord,
    *,
    uuids: Collection[str] | None = None,
) -> None:
    """Settle the checkpoints that killed processes of a trial left, and tell its observers.

    Checkpoints that were committed and could not be reported are added to the log of the killed
    run, if it has observers, before they are recorded: after a kill between the two the log, which
    every reader takes in first, records them.

    Args:
        database: Records of the checkpoints.
        storage: The trial's storage.
        trial: The trial; its process is gone.
        uuids: Only these checkpoints; None for all of the trial.
    """
    records = _LogFirst(database, trial)
    recover_checkpoints(database, storage, trial.id, uuids=uuids, records=records)


@dataclasses.dataclass(frozen=True, slots=True)
class _LogFirst:
    """Reports the complete checkpoints of a killed run to its log, then to the records."""

    database: Database
    trial: TrialRecord

    def record_checkpoint(
        self, change: CheckpointEvent, *, trial_id: int | None = None, force: bool = False
    ) -> None:
        """Record a change of a checkpoint's state."""
        if isinstance(change, CheckpointCommitted):
            append_to_killed(self.database, self.trial, change)
        self.database.record_checkpoint(change, trial_id=trial_id, force=force)
