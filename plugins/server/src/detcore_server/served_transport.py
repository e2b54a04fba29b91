"""The embedded store, with the files that a server sends its clients."""

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
    """Lists and opens single files of checkpoints and trials; clients check them themselves."""

    def list_files(self, uuid: str) -> Document:
        """Return the stored files of a checkpoint: ``uuid, storage_url, files`` (``name, size``).

        Raises:
            CheckpointStateError: If it is not complete, or was deleted.
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
        """Open a stored file of a checkpoint, and return it with its size.

        Fetch a file that is not on this machine first, into a private temporary file.

        Raises:
            CheckpointStateError: If the checkpoint is not complete, or was deleted.
            NotFoundError: If it has no such file.
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
                    return _open_regular(target)  # which stays, while it is open, without its name
            except (FileNotFoundError, IsADirectoryError, NotADirectoryError) as error:
                raise NotFoundError(
                    f"checkpoint {record.uuid} has no file {name!r} in {storage.url}."
                ) from error

    def open_event_file(self, trial_id: int, name: str) -> tuple[BinaryIO, int]:
        """Open an event file of a trial, and return it with its size.

        Raises:
            NotFoundError: If it has no such file.
        """
        trial = self.database().get_trial(trial_id)
        missing = NotFoundError(f"trial {trial.id} has no event file {name!r}.")
        if trial.trial_dir is None or "tfevents" not in name.rpartition("/")[2] or "\0" in name:
            raise missing
        folder = os.path.realpath(trial.trial_dir)
        path = f"{folder}/{name}"
        if os.path.realpath(path) != path:  # a link, or a path that leads out of the folder
            raise missing
        try:
            return _open_regular(Path(path))
        except OSError as error:
            raise missing from error


def _open_regular(path: Path) -> tuple[BinaryIO, int]:
    """Open a regular file; anything else (a pipe would wait forever) counts as missing."""
    file = open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb")  # noqa: SIM115
    status = os.fstat(file.fileno())
    if not stat.S_ISREG(status.st_mode):
        file.close()
        raise FileNotFoundError(path)
    return file, status.st_size
