"""Make copies of checkpoints in user folders, with a manifest that proves them complete."""

from __future__ import annotations

import errno
import os
import stat
import uuid as uuids
from pathlib import Path
from typing import TYPE_CHECKING

from detcore.checkpoint._download import download_checkpoint
from detcore.checkpoint._fields import MOST_MANIFEST_BYTES, parse_object
from detcore.checkpoint._manifest import (
    MANIFEST_FILE,
    METADATA_FILE,
    Manifest,
    decode_manifest,
    encode_manifest,
    read_manifest,
)
from detcore.errors import CheckpointCorruptError, InvalidCheckpointError

if TYPE_CHECKING:
    from detcore.checkpoint._transfer import TransferObserver
    from detcore.storage import StorageBackend

__all__ = ["copy_checkpoint", "is_whole_copy"]


def is_whole_copy(folder: Path, uuid: str) -> bool:
    """Whether a folder holds all files of a checkpoint, according to the manifest in it.

    Every file is read and compared with its digest, except ``metadata.json``, which users may
    change in a copy.

    Raises:
        InvalidCheckpointError: If the folder holds another checkpoint.
    """
    path = folder / MANIFEST_FILE
    try:
        mode = os.lstat(path).st_mode
    except (FileNotFoundError, NotADirectoryError):
        return False
    if not stat.S_ISREG(mode) or os.path.getsize(path) > MOST_MANIFEST_BYTES:
        return False
    data = path.read_bytes()
    _refuse_other(data, uuid, folder)
    try:
        manifest = decode_manifest(data, uuid, str(folder))
    except CheckpointCorruptError:
        return False
    return _matches(folder, manifest)


def copy_checkpoint(
    storage: StorageBackend, uuid: str, folder: Path, *, observer: TransferObserver | None = None
) -> Manifest:
    """Make a folder a complete copy of a checkpoint; correct files in it are kept.

    Files are written first and the manifest last, so an interrupted copy is not mistaken for a
    complete one. Other files in the folder stay.

    Args:
        storage: Storage of the checkpoint.
        uuid: UUID of the checkpoint.
        folder: The target; missing parents are created.
        observer: Receives the progress, or None.

    Raises:
        CheckpointNotFoundError: If the checkpoint does not exist.
        DetcoreError: As `download_checkpoint`.
    """
    manifest = read_manifest(storage, uuid)
    if not (folder.is_dir() and _matches(folder, manifest)):
        try:
            manifest = download_checkpoint(storage, uuid, folder, observer=observer)
        except OSError as error:
            # Another process created the folder at the same time; its files are replaced.
            if error.errno not in (errno.EEXIST, errno.ENOTEMPTY) or not folder.is_dir():
                raise
            manifest = download_checkpoint(storage, uuid, folder, observer=observer)
    temporary = folder / f".{MANIFEST_FILE}.{uuids.uuid4().hex}"
    try:
        temporary.write_bytes(encode_manifest(manifest))
        temporary.replace(folder / MANIFEST_FILE)
    finally:
        temporary.unlink(missing_ok=True)
    return manifest


def _refuse_other(data: bytes, uuid: str, folder: Path) -> None:
    try:
        found = parse_object(data).get("uuid")
    except (ValueError, RecursionError):
        return  # damaged: it will be downloaded again
    if isinstance(found, str) and found != uuid:
        raise InvalidCheckpointError(
            f"{folder} holds another checkpoint, {found}; {uuid} would be mixed with it.\n"
            "Name another folder, or remove that one."
        )


def _matches(folder: Path, manifest: Manifest) -> bool:
    return all(_is_same(folder, manifest, name) for name in manifest.files) and all(
        (folder / name).is_dir() for name in manifest.directories
    )


def _is_same(folder: Path, manifest: Manifest, name: str) -> bool:
    from detcore.storage import digest_file

    path, expected = folder / name, manifest.files[name]
    try:
        mode = os.stat(path).st_mode
        if name == METADATA_FILE:
            return stat.S_ISREG(mode)
        if not stat.S_ISREG(mode) or os.path.getsize(path) != expected.size:
            return False
        return digest_file(path, manifest.algorithm) == expected
    except OSError:
        return False
