"""Deleting checkpoints, or parts of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import TYPE_CHECKING

from detcore.checkpoint._commit import make_folders
from detcore.checkpoint._globs import Split, split_by_globs
from detcore.checkpoint._ids import check_id
from detcore.checkpoint._manifest import MANIFEST_FILE, encode_manifest, read_manifest
from detcore.errors import NotFoundError

if TYPE_CHECKING:
    from detcore.checkpoint._manifest import Manifest
    from detcore.database import Database
    from detcore.storage import StorageBackend

__all__ = ["delete_checkpoint", "remove_files"]


def delete_checkpoint(
    storage: StorageBackend,
    uuid: str,
    *,
    database: Database | None = None,
    globs: Iterable[str] | None = None,
) -> dict[str, int]:
    """Delete a checkpoint, or those of its files that patterns name.

    The record and the manifest go first, the files after them, so that an interruption leaves
    files that count for nothing, never a checkpoint with files missing. Deleting what is deleted
    already is fine.

    Args:
        storage: Where it is.
        uuid: Which.
        database: Where it is recorded, or None.
        globs: Patterns as in `pathlib.Path.glob`; a folder that matches goes with all that is in
            it. ``["**/*"]`` and None mean everything.

    Returns:
        The files that are left and their sizes; those of empty folders end in ``/``.

    Raises:
        CheckpointNotFoundError: If patterns are given and the checkpoint is not committed.
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
            _delete_part(storage, database, left, split)
            return left.resources()
    _record(database, uuid, {})
    remove_files(storage, uuid)
    return {}


def remove_files(storage: StorageBackend, uuid: str) -> None:
    """Remove everything of a checkpoint, the manifest first."""
    storage.delete([f"{check_id(uuid)}/{MANIFEST_FILE}"])
    storage.delete_tree(uuid)


def _delete_part(
    storage: StorageBackend, database: Database | None, left: Manifest, split: Split
) -> None:
    uuid = left.uuid
    storage.replace(f"{uuid}/{MANIFEST_FILE}", encode_manifest(left))
    _record(database, uuid, left.resources())
    storage.delete(f"{uuid}/{name}" for name in sorted(split.gone_files))
    for name in sorted(split.gone_folders):
        storage.delete_tree(f"{uuid}/{name}")
    make_folders(storage, uuid, left.directories)


def _without(manifest: Manifest, split: Split) -> Manifest:
    return dataclasses.replace(
        manifest,
        files={name: d for name, d in manifest.files.items() if name not in split.gone_files},
        directories=split.empty_folders,
    )


def _record(database: Database | None, uuid: str, resources: dict[str, int]) -> None:
    if database is None:
        return
    try:
        database.checkpoint_deleted(uuid, resources=resources)
    except NotFoundError:
        return  # a checkpoint of another database, in a storage that both use
