"""Embedded transport that also serves files to clients."""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from detcore.client import EmbeddedTransport
from detcore.errors import NotFoundError

if TYPE_CHECKING:
    from detcore.client import Document


class ServedTransport(EmbeddedTransport):
    """Lists and opens files of checkpoints and trials. Clients verify the files."""

    def list_files(self, uuid: str) -> Document:
        """Return a checkpoint's stored files as ``uuid, storage_url, files`` (``name, size``).

        Raises:
            CheckpointStateError: If the checkpoint is incomplete or was deleted.
        """
        with self.open_checkpoint(uuid) as (record, storage):
            start = len(record.uuid) + 1
            return {
                "uuid": record.uuid,
                "storage_url": storage.url,
                "files": [
                    {"name": entry.key[start:], "size": entry.size}
                    for entry in storage.list(record.uuid)
                ],
            }

    def open_file(self, uuid: str, name: str) -> tuple[BinaryIO, int]:
        """Open a stored file of a checkpoint, and return the file and its size.

        A file on another machine is first copied to a private temporary file.

        Raises:
            CheckpointStateError: If the checkpoint is incomplete or was deleted.
            NotFoundError: If the file does not exist.
        """
        with self.open_checkpoint(uuid) as (record, storage):
            key = f"{record.uuid}/{name}"
            try:
                path = storage.direct_path(key)
                if path is not None:
                    return _open_regular(path)
                with tempfile.TemporaryDirectory(prefix="detcore-") as folder:
                    target = Path(folder) / "file"
                    storage.get_tree([(target, key)])
                    # An open file stays readable after the directory is removed.
                    return _open_regular(target)
            except (FileNotFoundError, IsADirectoryError, NotADirectoryError) as error:
                raise NotFoundError(
                    f"checkpoint {record.uuid} has no file {name!r} in {storage.url}."
                ) from error

    def open_event_file(self, trial_id: int, name: str) -> tuple[BinaryIO, int]:
        """Open an event file of a trial, and return the file and its size.

        Raises:
            NotFoundError: If the file does not exist.
        """
        trial = self.database().get_trial(trial_id)
        missing = NotFoundError(f"trial {trial.id} has no event file {name!r}.")
        if trial.trial_dir is None or "tfevents" not in name.rpartition("/")[2] or "\0" in name:
            raise missing
        folder = os.path.realpath(trial.trial_dir)
        path = f"{folder}/{name}"
        if os.path.realpath(path) != path:  # a link, or a path outside the directory
            raise missing
        try:
            return _open_regular(Path(path))
        except OSError as error:
            raise missing from error


def _open_regular(path: Path) -> tuple[BinaryIO, int]:
    """Open a regular file. Other kinds count as missing, because a pipe would block."""
    file = open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb")  # noqa: SIM115
    status = os.fstat(file.fileno())
    if not stat.S_ISREG(status.st_mode):
        file.close()
        raise FileNotFoundError(path)
    return file, status.st_size
