"""Find the checkpoint that the trials of an experiment start from."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from detcore.checkpoint._manifest import has_manifest
from detcore.contract.errors import (
    ConfigError,
    NotFoundError,
    RunError,
    StorageError,
    UnsafePathError,
)
from detcore.storage import StorageBackend, open_storage

if TYPE_CHECKING:
    from detcore.database import CheckpointRecord, Database
    from detcore.environment import Environment
    from detcore.hooks import PluginManager

__all__ = [
    "CheckpointSource",
    "RecordedPlace",
    "find_place",
    "find_source",
    "open_recorded",
    "pin_source",
]

_UUID, _TRIAL = "source_checkpoint_uuid", "source_trial_id"
_SPEC = "checkpoint_storage"


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


def find_source(
    searcher: Mapping[str, Any],
    *,
    database: Database,
    storage: StorageBackend,
    environment: Environment,
    plugins: PluginManager,
) -> CheckpointSource | None:
    """Find the checkpoint that ``searcher`` names.

    It is looked up in the experiment's storage first, then at its recorded location.

    Args:
        searcher: The section of the experiment file.
        database: The records.
        storage: The experiment's storage.
        environment: Location of default checkpoints.
        plugins: Registry of storage types.

    Returns:
        The checkpoint, or None if the trials start without one.

    Raises:
        RunError: If the trial, checkpoint or folder does not exist.
    """
    if searcher.get(_TRIAL) is not None:
        name = f"searcher.{_TRIAL}: {searcher[_TRIAL]}"
        wanted = _latest_of(database, searcher[_TRIAL], name)
    elif searcher.get(_UUID) is not None:
        wanted = searcher[_UUID]
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
    place = find_place(record, database=database, home=environment.home, plugins=plugins)
    with contextlib.closing(place.open()) as other:
        if has_manifest(other, record.uuid):
            return CheckpointSource(checkpoint=record.uuid, storage=place.spec)
    raise RunError(
        f"{name}\nCheckpoint {record.uuid} is recorded as {record.state}, but it is not in "
        f"{record.storage_url}.\n"
        "It was deleted, or never finished. List those there are: detcore checkpoint list"
    )


def pin_source(plain: dict[str, Any], source: CheckpointSource | None) -> None:
    """Record the checkpoint that was found, so that every start uses the same one.

    A trial's latest checkpoint may be a different one later.

    Args:
        plain: The configuration to record; modified.
        source: The result of `find_source`.
    """
    if source is not None:
        plain["searcher"].update({_TRIAL: None, _UUID: source.checkpoint})


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


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RecordedPlace:
    """Location of a recorded checkpoint.

    Attributes:
        checkpoint: Its UUID.
        spec: Specification that opens its storage, as ``checkpoint_storage`` of an experiment file;
            may contain secrets.
        url: The storage's URL, as recorded with the checkpoint.
        missing: Names of settings whose secret was in the experiment file and is unknown here; the
            environment's credentials are used instead.
        secrets: The file that keeps such secrets.
        home: The folder of records.
        plugins: Registry of storage types.
    """

    checkpoint: str
    spec: str | Mapping[str, Any]
    url: str
    missing: tuple[str, ...]
    secrets: Path
    home: Path
    plugins: PluginManager | None

    def open(self) -> StorageBackend:
        """Open the storage; the caller closes it.

        Raises:
            ConfigError: If the settings are no longer valid.
            StorageError: If a secret is missing, and the checkpoint cannot be reached without it.
        """
        if not self.missing:
            return open_storage(self.spec, home=self.home, plugins=self.plugins)
        try:
            storage = open_storage(self.spec, home=self.home, plugins=self.plugins)
            with contextlib.ExitStack() as stack:
                stack.callback(storage.close)
                has_manifest(storage, self.checkpoint)  # the first request shows whether it works
                stack.pop_all()
        except (ConfigError, OSError) as error:
            raise StorageError(
                f"checkpoint {self.checkpoint} is in {self.url}, which cannot be reached: "
                f"{str(error).partition(chr(10))[0]}\n"
                f"{' and '.join(self.missing)} of the experiment file are not among the records, "
                f"and {self.secrets} is not there.\n"
                "Put that file back, or give credentials by the environment (for S3: "
                "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE)."
            ) from error
        return storage


def find_place(
    record: CheckpointRecord,
    *,
    database: Database,
    home: Path,
    plugins: PluginManager | None,
) -> RecordedPlace:
    """Find out how to open the storage of a recorded checkpoint.

    Its URL does not include the endpoint and the credentials; the configuration of its experiment
    does. Secrets come from the file that `keep_secrets` wrote.

    Args:
        record: The checkpoint.
        database: The records.
        home: The folder of records.
        plugins: Registry of storage types.
    """
    from detcore.database import restore_secrets

    config = database.get_experiment(record.experiment_id).config
    restored = restore_secrets(home, record.experiment_id, config)
    spec: Any = restored.config.get(_SPEC)
    is_it = _leads_to(spec, record.storage_url, home, plugins)
    return RecordedPlace(
        checkpoint=record.uuid,
        spec=spec if is_it else record.storage_url,
        url=record.storage_url,
        missing=restored.missing if is_it else (),
        secrets=restored.path,
        home=home,
        plugins=plugins,
    )


def open_recorded(
    record: CheckpointRecord,
    *,
    database: Database,
    home: Path,
    plugins: PluginManager | None,
) -> StorageBackend:
    """Open the storage of a recorded checkpoint; see `find_place` and `RecordedPlace.open`."""
    return find_place(record, database=database, home=home, plugins=plugins).open()


def _leads_to(spec: object, url: str, home: Path, plugins: PluginManager | None) -> bool:
    """Whether a specification refers to the storage with a URL; does not connect."""
    if not isinstance(spec, str | Mapping):
        return False
    try:
        with contextlib.closing(open_storage(spec, home=home, plugins=plugins)) as storage:
            return storage.url == url
    except ConfigError:
        # An unmounted folder, a plugin that is gone, or a secret that a type requires: opening the
        # storage reports the reason.
        return isinstance(spec, Mapping)
