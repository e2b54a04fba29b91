"""Download the files of a checkpoint, complete and verified, or not at all.

A copy also holds the manifest, which proves that it is complete.
"""

from __future__ import annotations

import enum
import errno
import os
import shutil
import stat
import uuid as uuids
from pathlib import Path
from typing import TYPE_CHECKING

from detcore.checkpoint._fields import MOST_MANIFEST_BYTES, parse_object
from detcore.checkpoint._manifest import (
    MANIFEST_FILE,
    METADATA_FILE,
    Manifest,
    decode_manifest,
    encode_manifest,
    read_manifest,
)
from detcore.checkpoint._transfer import TransferObserver, watched
from detcore.checkpoint._verify import Fault, compare_digests, compare_sizes, refuse, stored_sizes
from detcore.errors import CheckpointCorruptError, InvalidCheckpointError, StorageFullError

if TYPE_CHECKING:
    from detcore.checkpoint._scan import Selector
    from detcore.storage import StorageBackend

__all__ = ["DownloadMode", "copy_checkpoint", "download_checkpoint", "is_whole_copy"]


class DownloadMode(enum.Enum):
    """Which workers download; with one worker, both modes are the same."""

    LocalWorkersShareDownload = "LOCAL_WORKERS_SHARE_DOWNLOAD"
    """One worker of each node downloads for all of them (default)."""

    NoSharedDownload = "NO_SHARED_DOWNLOAD"
    """Every worker downloads for itself."""


def download_checkpoint(
    storage: StorageBackend,
    uuid: str,
    folder: Path,
    *,
    selector: Selector | None = None,
    observer: TransferObserver | None = None,
) -> Manifest:
    """Copy a checkpoint's files to a folder, checking size and digest of each.

    The files are assembled next to their destination first, so a failure leaves the folder as it
    was. If the folder exists, they are then moved into it one by one: files of the same names are
    replaced, others stay.

    Args:
        storage: Storage of the checkpoint.
        uuid: UUID of the checkpoint.
        folder: The target; missing parents are created.
        selector: Selects the files to take; default: all. Called with names below the checkpoint,
            those of empty folders end in ``/``.
        observer: Receives the progress, or None.

    Raises:
        CheckpointNotFoundError: If the checkpoint does not exist.
        CheckpointCorruptError: If a file is missing or has changed; the message names it.
        InvalidCheckpointError: If a file of the checkpoint would replace a folder or vice versa,
            or go through a link that leads out of the folder.
        UnsafePathError: If the file system does not distinguish two of its names.
        StorageFullError: If the disk has too little space.
    """
    there = stored_sizes(storage, uuid)
    manifest = read_manifest(storage, uuid, sizes=there)
    folder = folder.absolute()
    names = [name for name in manifest.files if selector is None or selector(name)]
    empty = [name for name in manifest.directories if selector is None or selector(f"{name}/")]
    refuse(storage, uuid, compare_sizes(storage, manifest, names, there))
    exists = os.path.lexists(folder)
    if exists:
        _check_room(folder, names, empty)
    else:
        folder.parent.mkdir(parents=True, exist_ok=True)
    # Staged inside an existing folder, which may be a separate mount point.
    token = f".tmp-{uuids.uuid4().hex}"
    temporary = folder / token if exists else folder.with_name(folder.name + token)
    try:
        temporary.mkdir()
        _check_space(manifest, names, temporary)
        _check_names(temporary, names, empty)
        _fetch(storage, manifest, names, temporary, observer)
        for name in empty:
            (temporary / name).mkdir(parents=True, exist_ok=True)
        if exists:
            _move_into(temporary, folder, names, empty)
        else:
            temporary.rename(folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return manifest


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


def _fetch(
    storage: StorageBackend,
    manifest: Manifest,
    names: list[str],
    target: Path,
    observer: TransferObserver | None,
) -> None:
    total = sum(manifest.files[name].size for name in names)
    try:
        with watched(observer, f"downloading {manifest.uuid[:8]}", total) as progress:
            digests = storage.get_tree(
                [(target / name, f"{manifest.uuid}/{name}") for name in names],
                algorithm=manifest.algorithm,
                progress=progress,
            )
    except FileNotFoundError as error:  # it was deleted during the download
        there = stored_sizes(storage, manifest.uuid)
        missing = [Fault(name, "is missing") for name in names if name not in there]
        refuse(storage, manifest.uuid, missing, error)
        raise
    refuse(storage, manifest.uuid, compare_digests(manifest, digests))


def _check_space(manifest: Manifest, names: list[str], folder: Path) -> None:
    """Refuse a download that does not fit, before it fills the disk."""
    total = sum(manifest.files[name].size for name in names)
    free = shutil.disk_usage(folder).free
    if total > free:
        raise StorageFullError(
            f"checkpoint {manifest.uuid} has {total} bytes, and there is room for {free} at "
            f"{folder.parent}.\nNothing was downloaded.\n"
            "Make room there, choose another folder, or take fewer files (selector).",
            missing_bytes=total - free,
        )


def _check_names(folder: Path, names: list[str], empty: list[str]) -> None:
    """Refuse names that this file system does not distinguish, including empty folders."""
    from detcore.storage import check_targets

    filled = {parent for name in names for parent in (folder / name).parents}
    folders = [folder / name for name in empty if folder / name not in filled]
    check_targets([*(folder / name for name in names), *folders])


def _check_room(folder: Path, names: list[str], empty: list[str]) -> None:
    """Refuse, before moving anything, a download that would have to remove something else."""
    if not folder.is_dir():
        raise InvalidCheckpointError(
            f"the checkpoint cannot be downloaded to {folder}, which is a file.\n"
            "Name a folder, or a path where there is nothing yet."
        )
    root = os.path.realpath(folder)
    for name in (*names, *empty):
        path = folder / name
        parent = os.path.realpath(path.parent)
        if os.path.commonpath([root, parent]) != root:
            raise InvalidCheckpointError(
                f"the checkpoint's {name} cannot be put into {folder}: a link there leads out of "
                f"it, to {parent}.\nDownload to another folder, or remove the link."
            )
        blocking = [parent for parent in path.parents if parent.is_file()]
        if name in empty and path.is_file():
            blocking.append(path)
        if name not in empty and path.is_dir():
            blocking.append(path)
        if blocking:
            kind = "a folder" if blocking[0].is_dir() else "a file"
            raise InvalidCheckpointError(
                f"the checkpoint's {name} cannot be put into {folder}: {blocking[0]} is {kind}.\n"
                "Download to another folder, or move that away."
            )


def _move_into(source: Path, folder: Path, names: list[str], empty: list[str]) -> None:
    for name in names:
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        os.replace(source / name, target)
    for name in empty:
        (folder / name).mkdir(parents=True, exist_ok=True)


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
