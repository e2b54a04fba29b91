"""Files of checkpoints, for the embedded store."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from detcore.errors import CheckpointStateError
from detcore.hooks import PluginManager

if TYPE_CHECKING:
    from detcore.database import CheckpointRecord, Database
    from detcore.environment import Environment
    from detcore.storage import StorageBackend

__all__ = ["delete_files", "download_files"]

_READABLE = ("COMPLETED", "PARTIALLY_DELETED")
_WHY = {
    "ACTIVE": "is not complete: it is being saved, or saving it was interrupted",
    "DAMAGED": "is damaged (see detcore checkpoint repair)",
    "DELETED": "was deleted",
    "DELETING": "was being deleted when its process ended",
}


def download_files(database: Database, environment: Environment, uuid: str, folder: Path) -> None:
    """Copy a checkpoint's files to a folder, each checked.

    Raises:
        CheckpointStateError: If it is not complete, or was deleted.
        DetcoreError: As `detcore.checkpoint.copy_checkpoint`.
    """
    from detcore.checkpoint import copy_checkpoint

    record = database.get_checkpoint(uuid)
    _require_readable(record)
    with _storage(database, environment, record) as storage:
        copy_checkpoint(storage, record.uuid, folder)


def delete_files(
    database: Database, environment: Environment, uuid: str, globs: Sequence[str] | None
) -> None:
    """Delete a checkpoint's files, or those that match.

    Raises:
        CheckpointStateError: If it is being saved or in the model registry, or if patterns are
            given and it is not complete; nothing was deleted.
    """
    from detcore.checkpoint import delete_checkpoint

    record = database.get_checkpoint(uuid)
    if record.state == "ACTIVE" and database.run_is_alive(record.trial_id) is not False:
        raise CheckpointStateError(
            f"checkpoint {record.uuid} is being saved by trial {record.trial_id}.\n"
            "Wait until it is complete, or end the trial first."
        )
    if globs is not None:
        _require_readable(record)
    with _storage(database, environment, record) as storage:
        # Of a deleted one an interrupted deletion may have left files; its record stays as it is.
        kept = None if record.state == "DELETED" else database
        delete_checkpoint(storage, record.uuid, database=kept, globs=globs)


@contextlib.contextmanager
def _storage(
    database: Database, environment: Environment, record: CheckpointRecord
) -> Iterator[StorageBackend]:
    from detcore.checkpoint import open_recorded

    plugins = PluginManager(
        environment, disabled=environment.disabled_plugins, allowed=environment.allowed_plugins
    )
    storage = open_recorded(record, database=database, home=environment.home, plugins=plugins)
    with contextlib.closing(storage):
        yield storage


def _require_readable(record: CheckpointRecord) -> None:
    if record.state not in _READABLE:
        raise CheckpointStateError(
            f"checkpoint {record.uuid} {_WHY.get(record.state, record.state)}.\n"
            "List those that are there with: detcore checkpoint list"
        )
