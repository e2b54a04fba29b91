"""Files of checkpoints and of trials, for the embedded store."""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from detcore.errors import CheckpointStateError, NotFoundError
from detcore.hooks import PluginManager

if TYPE_CHECKING:
    from detcore.database import CheckpointRecord, Database, TrialRecord
    from detcore.environment import Environment
    from detcore.experimental._transport import Document
    from detcore.storage import StorageBackend

__all__ = [
    "copy_event_files",
    "delete_files",
    "download_files",
    "list_event_files",
    "list_files",
    "open_event_file",
    "open_file",
]

# TensorBoard looks for the same part of a file's name.
_EVENTS = "tfevents"
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


def list_files(database: Database, environment: Environment, uuid: str) -> Document:
    """Return the stored files of a checkpoint.

    Raises:
        CheckpointStateError: If it is not complete, or was deleted.
    """
    record = database.get_checkpoint(uuid)
    _require_readable(record)
    with _storage(database, environment, record) as storage:
        start = len(record.uuid) + 1
        return {
            "uuid": record.uuid,
            "storage_url": storage.url,
            "files": [
                {"name": entry.key[start:], "size": entry.size}
                for entry in storage.list(record.uuid)
            ],
        }


def open_file(
    database: Database, environment: Environment, uuid: str, name: str
) -> tuple[BinaryIO, int]:
    """Open a stored file of a checkpoint, and return it with its size.

    Fetch a file that is not on this machine first, into a private temporary file.

    Raises:
        CheckpointStateError: If the checkpoint is not complete, or was deleted.
        NotFoundError: If it has no such file.
    """
    record = database.get_checkpoint(uuid)
    _require_readable(record)
    key = f"{record.uuid}/{name}"
    with _storage(database, environment, record) as storage:
        try:
            path = storage.direct_path(key)
            if path is not None:
                return _opened(path)
            with tempfile.TemporaryDirectory(prefix="detcore-") as folder:
                target = Path(folder) / "file"
                storage.get_tree([(target, key)])
                return _opened(target)  # which stays, while it is open, without its name
        except (FileNotFoundError, IsADirectoryError, NotADirectoryError) as error:
            raise NotFoundError(
                f"checkpoint {record.uuid} has no file {name!r} in {storage.url}."
            ) from error


def list_event_files(trial_dir: str | None) -> list[Document]:
    """Return ``name, size`` of the event files below a trial's folder, by name.

    Return an empty list for a trial that ran on another machine. Links are left out: they may
    lead anywhere.
    """
    found = []
    for folder, _, names in os.walk(trial_dir or ""):
        for name in names:
            path = os.path.join(folder, name)
            if _EVENTS not in name or not name.isprintable():
                continue
            with contextlib.suppress(FileNotFoundError):  # removed since it was listed
                status = os.lstat(path)
                if stat.S_ISREG(status.st_mode):
                    relative = Path(path).relative_to(trial_dir or "").as_posix()
                    found.append({"name": relative, "size": status.st_size})
    return sorted(found, key=lambda file: str(file["name"]))


def copy_event_files(trial_dir: str | None, folder: Path) -> int:
    """Copy a trial's event files to a folder, and return how many there are."""
    files = list_event_files(trial_dir)
    for file in files:
        target = folder / file["name"]
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(Path(trial_dir or "") / file["name"], target)
    return len(files)


def open_event_file(trial: TrialRecord, name: str) -> tuple[BinaryIO, int]:
    """Open an event file of a trial, and return it with its size.

    Raises:
        NotFoundError: If it has no such file.
    """
    missing = NotFoundError(f"trial {trial.id} has no event file {name!r}.")
    if trial.trial_dir is None or _EVENTS not in name.rpartition("/")[2] or "\0" in name:
        raise missing
    folder = os.path.realpath(trial.trial_dir)
    path = f"{folder}/{name}"
    if os.path.realpath(path) != path:  # a link, or a path that leads out of the folder
        raise missing
    try:
        return _opened(Path(path))
    except OSError as error:
        raise missing from error


def _opened(path: Path) -> tuple[BinaryIO, int]:
    """Open a regular file; anything else (a pipe would wait forever) counts as missing."""
    file = open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb")  # noqa: SIM115
    status = os.fstat(file.fileno())
    if not stat.S_ISREG(status.st_mode):
        file.close()
        raise FileNotFoundError(path)
    return file, status.st_size


@contextlib.contextmanager
def _storage(
    database: Database, environment: Environment, record: CheckpointRecord
) -> Iterator[StorageBackend]:
    from detcore.checkpoint import open_recorded

    plugins = PluginManager(environment)
    storage = open_recorded(record, database=database, home=environment.home, plugins=plugins)
    with contextlib.closing(storage):
        yield storage


def _require_readable(record: CheckpointRecord) -> None:
    if record.state not in _READABLE:
        raise CheckpointStateError(
            f"checkpoint {record.uuid} {_WHY.get(record.state, record.state)}.\n"
            "List those that are there with: detcore checkpoint list"
        )
