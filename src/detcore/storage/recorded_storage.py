"""Open the storage of a recorded checkpoint with the settings of its experiment."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from detcore.contract.errors import ConfigError, StorageError
from detcore.storage.storage_opening import open_storage

if TYPE_CHECKING:
    from detcore.contract.storage import StorageBackend
    from detcore.plugins import PluginManager
    from detcore.records import CheckpointRecord, Database


_SPEC = "checkpoint_storage"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RecordedStorage:
    """Location of a recorded checkpoint.

    Attributes:
        checkpoint: UUID of the checkpoint.
        spec: Specification of the storage, as ``checkpoint_storage`` in an experiment file; may
            contain secrets.
        url: URL of the storage, as recorded with the checkpoint.
        missing: Names of settings whose secret was in the experiment file and is unknown here. The
            environment's credentials are used instead.
        secrets: The file that keeps such secrets.
        home: The directory of records.
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
        """Open the storage. The caller closes it.

        Raises:
            ConfigError: If the settings are no longer valid.
            StorageError: If a secret is missing and the storage is inaccessible without it.
        """
        if not self.missing:
            return open_storage(self.spec, home=self.home, plugins=self.plugins)
        try:
            storage = open_storage(self.spec, home=self.home, plugins=self.plugins)
            with contextlib.ExitStack() as stack:
                stack.callback(storage.close)
                storage.list(self.checkpoint)  # the first request shows whether it works
                stack.pop_all()
        except (ConfigError, OSError) as error:
            raise StorageError(
                f"checkpoint {self.checkpoint} is in {self.url}, which cannot be reached: "
                f"{str(error).partition(chr(10))[0]}\n"
                f"{' and '.join(self.missing)} of the experiment file are not in the records, "
                f"and {self.secrets} is missing.\n"
                "Restore that file, or set credentials in the environment (for S3: "
                "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE)."
            ) from error
        return storage


def find_recorded_storage(
    record: CheckpointRecord,
    *,
    database: Database,
    home: Path,
    plugins: PluginManager | None,
) -> RecordedStorage:
    """Find the storage of a recorded checkpoint.

    The recorded URL has no endpoint and no credentials. They come from the configuration of the
    experiment, and secrets from the file that `save_secrets` wrote.

    Args:
        record: The checkpoint.
        database: The records.
        home: The directory of records.
        plugins: Registry of storage types.
    """
    from detcore.records import restore_secrets

    config = database.get_experiment(record.experiment_id).config
    restored = restore_secrets(home, record.experiment_id, config)
    spec: Any = restored.config.get(_SPEC)
    is_configured = _is_storage_of(spec, record.storage_url, home, plugins)
    return RecordedStorage(
        checkpoint=record.uuid,
        spec=spec if is_configured else record.storage_url,
        url=record.storage_url,
        missing=restored.missing if is_configured else (),
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
    """Open the storage of a recorded checkpoint.

    See `find_recorded_storage` and `RecordedStorage.open`.
    """
    return find_recorded_storage(record, database=database, home=home, plugins=plugins).open()


def _is_storage_of(spec: object, url: str, home: Path, plugins: PluginManager | None) -> bool:
    """Whether a specification refers to the storage with this URL, without connecting."""
    if not isinstance(spec, str | Mapping):
        return False
    try:
        with contextlib.closing(open_storage(spec, home=home, plugins=plugins)) as storage:
            return storage.url == url
    except ConfigError:
        # A directory is not mounted, a plugin was removed, or a type requires a secret. Opening the
        # storage reports the reason.
        return isinstance(spec, Mapping)
