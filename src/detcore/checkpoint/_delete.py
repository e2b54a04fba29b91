"""Deleting checkpoints, or parts of them."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING

from detcore.checkpoint._commit import make_folders
from detcore.checkpoint._globs import Split, split_by_globs
from detcore.checkpoint._ids import check_id
from detcore.checkpoint._manifest import MANIFEST_FILE, encode_manifest, read_manifest
from detcore.errors import NotFoundError

if TYPE_CHECKING:
    from detcore.checkpoint._manifest import Manifest
    from detcore.checkpoint._records import CheckpointRecords
    from detcore.storage import StorageBackend

__all__ = ["delete_checkpoint", "finish_part", "remove_files"]


def delete_checkpoint(
    storage: StorageBackend,
    uuid: str,
    *,
    database: CheckpointRecords | None = None,
    globs: Iterable[str] | None = None,
    force: bool = False,
) -> dict[str, int]:
    """Delete a checkpoint, or those of its files that patterns name.

    The record goes first, then the manifest, then the files, so that an interruption leaves files
    that count for nothing, never a checkpoint with files missing; the trial's next start removes
    them. Deleting what is deleted already is fine.

    Args:
        storage: Where it is.
        uuid: Which.
        database: Where it is recorded, or None.
        globs: Patterns as in `pathlib.Path.glob`; a folder that matches goes with all that is in
            it. ``["**/*"]`` and None mean everything.
        force: Whether one that is in the model registry may go.

    Returns:
        The files that are left and their sizes; those of empty folders end in ``/``.

    Raises:
        CheckpointNotFoundError: If patterns are given and the checkpoint is not committed.
        CheckpointStateError: If it is in the model registry; nothing was deleted.
        UnsafePathError: If a pattern leads out of the checkpoint.
    """
    check_id(uuid)
    if globs is not None:
        manifest = read_manifest(storage, uuid)
        split = split_by_globs(manifest.files, manifest.directories, globs)
        if not split.gone_files and not split.gone_folders:
            return manifest.resources()
        left = _without(manifest, split)
        if left.files or left.directories:
            _record(database, uuid, left.resources(), force=force)
            _remove_rest(storage, manifest, left, split.gone_files)
            return left.resources()
    if database is not None:
        with contextlib.suppress(NotFoundError):  # one of another database, in a shared storage
            database.checkpoint_deleting(uuid, force=force)
    remove_files(storage, uuid)
    _record(database, uuid, {})
    return {}


def remove_files(storage: StorageBackend, uuid: str) -> None:
    """Remove everything of a checkpoint, the manifest first."""
    storage.delete([f"{check_id(uuid)}/{MANIFEST_FILE}"])
    storage.delete_tree(uuid)


def finish_part(storage: StorageBackend, manifest: Manifest, kept: Collection[str]) -> Manifest:
    """Finish a partial deletion that was interrupted.

    Args:
        storage: Where the checkpoint is.
        manifest: What it says now.
        kept: What was to stay, as recorded; names of empty folders end in ``/``.

    Returns:
        What is left.
    """
    left = dataclasses.replace(
        manifest,
        files={name: digest for name, digest in manifest.files.items() if name in kept},
        directories=tuple(sorted(name[:-1] for name in kept if name.endswith("/"))),
    )
    from detcore.storage import is_safe_key

    # Names that nobody may write, such as "../x", are none of ours, and cannot be deleted.
    keys = [entry.key for entry in storage.list(left.uuid) if is_safe_key(entry.key)]
    there = {key.partition("/")[2] for key in keys}
    _remove_rest(storage, manifest, left, there - set(left.files) - {MANIFEST_FILE})
    return left


def _remove_rest(
    storage: StorageBackend, manifest: Manifest, left: Manifest, gone: Collection[str]
) -> None:
    """Remove a part of a checkpoint, from its manifest first."""
    uuid = left.uuid
    if left != manifest:
        storage.replace(f"{uuid}/{MANIFEST_FILE}", encode_manifest(left))
    storage.delete(f"{uuid}/{name}" for name in sorted(gone))
    root = storage.direct_path(uuid)
    if root is None:
        return
    for folder in sorted(root.rglob("*/"), reverse=True):
        if folder.relative_to(root).as_posix() not in left.directories:
            with contextlib.suppress(OSError):  # something is left in it
                folder.rmdir()
    make_folders(storage, uuid, left.directories)


def _without(manifest: Manifest, split: Split) -> Manifest:
    return dataclasses.replace(
        manifest,
        files={name: d for name, d in manifest.files.items() if name not in split.gone_files},
        directories=split.empty_folders,
    )


def _record(
    database: CheckpointRecords | None, uuid: str, resources: dict[str, int], *, force: bool = False
) -> None:
    if database is None:
        return
    try:
        database.checkpoint_deleted(uuid, resources=resources, force=force)
    except NotFoundError:
        return  # a checkpoint of another database, in a storage that both use
