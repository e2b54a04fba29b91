"""Getting the files of a checkpoint, whole and checked, or not at all."""

from __future__ import annotations

import enum
import os
import shutil
import uuid as uuids
from pathlib import Path
from typing import TYPE_CHECKING

from detcore.checkpoint._manifest import Manifest, read_manifest
from detcore.checkpoint._verify import Fault, check_copies, corrupt
from detcore.errors import InvalidCheckpointError

if TYPE_CHECKING:
    from detcore.checkpoint._scan import Selector
    from detcore.storage import StorageBackend

__all__ = ["DownloadMode", "download_checkpoint"]


class DownloadMode(enum.Enum):
    """Which workers download. With one worker the two modes are the same."""

    LocalWorkersShareDownload = "LOCAL_WORKERS_SHARE_DOWNLOAD"
    """One worker of each node downloads for all of them (default)."""

    NoSharedDownload = "NO_SHARED_DOWNLOAD"
    """Every worker downloads for itself."""


def download_checkpoint(
    storage: StorageBackend, uuid: str, folder: Path, *, selector: Selector | None = None
) -> Manifest:
    """Copy a checkpoint's files to a folder, checking size and digest of each.

    The files are put together beside the folder first, so a failure leaves it as it was. Into a
    folder that exists they are then moved one by one: files of the same names are replaced,
    others stay.

    Args:
        storage: Where the checkpoint is.
        uuid: Which.
        folder: Where to; parents are made.
        selector: Which files to take; default: all. Called with names below the checkpoint, those
            of empty folders end in ``/``.

    Raises:
        CheckpointNotFoundError: If there is no such checkpoint.
        CheckpointCorruptError: If a file is missing or has changed; it is named.
        InvalidCheckpointError: If a file of the checkpoint would replace a folder, or the other
            way round.
    """
    manifest = read_manifest(storage, uuid)
    folder = folder.absolute()
    names = [name for name in manifest.files if selector is None or selector(name)]
    empty = [name for name in manifest.directories if selector is None or selector(f"{name}/")]
    exists = os.path.lexists(folder)
    if exists:
        _check_room(folder, names, empty)
    else:
        folder.parent.mkdir(parents=True, exist_ok=True)
    # Inside of a folder that exists, which may be a mount point of its own.
    token = f".tmp-{uuids.uuid4().hex}"
    temporary = folder / token if exists else folder.with_name(folder.name + token)
    try:
        temporary.mkdir()
        _fetch(storage, manifest, names, temporary)
        for name in empty:
            (temporary / name).mkdir(parents=True, exist_ok=True)
        if exists:
            _move_into(temporary, folder, names, empty)
        else:
            temporary.rename(folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return manifest


def _fetch(storage: StorageBackend, manifest: Manifest, names: list[str], target: Path) -> None:
    prefix = f"{manifest.uuid}/"
    try:
        digests = storage.get_tree(
            [(target / name, prefix + name) for name in names], algorithm=manifest.algorithm
        )
    except FileNotFoundError as error:
        there = {entry.key for entry in storage.list(manifest.uuid)}
        missing = [Fault(name, "is missing") for name in names if prefix + name not in there]
        if not missing:
            raise
        raise corrupt(storage, manifest.uuid, missing) from error
    check_copies(storage, manifest, {key[len(prefix) :]: digest for key, digest in digests.items()})


def _check_room(folder: Path, names: list[str], empty: list[str]) -> None:
    """Refuse, before anything is moved, what could only be done by removing something else."""
    if not folder.is_dir():
        raise InvalidCheckpointError(
            f"the checkpoint cannot be downloaded to {folder}, which is a file.\n"
            "Name a folder, or a path where there is nothing yet."
        )
    for name in (*names, *empty):
        path = folder / name
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
