"""Delete checkpoints, or the files in them that match patterns."""

from __future__ import annotations

import contextlib
import dataclasses
import fnmatch
from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING

from detcore.checkpoint.commit import CheckpointRecords, make_folders
from detcore.checkpoint.manifest import Manifest, encode_manifest, read_manifest
from detcore.checkpoint.manifest_fields import MANIFEST_FILE, check_id, list_parent_names
from detcore.contract.errors import NotFoundError, UnsafePathError
from detcore.log import events

if TYPE_CHECKING:
    from detcore.storage import StorageBackend


def delete_checkpoint(
    storage: StorageBackend,
    uuid: str,
    *,
    database: CheckpointRecords | None = None,
    globs: Iterable[str] | None = None,
    force: bool = False,
) -> dict[str, int]:
    """Delete a checkpoint, or the files in it that match patterns.

    The record goes first, then the manifest, then the files. An interruption therefore leaves
    files without a manifest, never a checkpoint with files missing; the trial's next start removes
    them. Deleting a deleted checkpoint has no effect.

    Args:
        storage: Storage of the checkpoint.
        uuid: UUID of the checkpoint.
        database: Records of the checkpoint, or None.
        globs: Patterns as in `pathlib.Path.glob`; a matching folder is deleted with its contents.
            ``["**/*"]`` and None mean everything.
        force: Whether to delete even a checkpoint in the model registry.

    Returns:
        The remaining files and their sizes; those of empty folders end in ``/``.

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
        left = dataclasses.replace(
            manifest,
            files={name: d for name, d in manifest.files.items() if name not in split.gone_files},
            directories=split.empty_folders,
        )
        kept = left.resources()
        if kept:
            _record(database, events.CheckpointDeleted(uuid=uuid, resources=kept), force=force)
            _remove_rest(storage, manifest, left, split.gone_files)
            return kept
    _record(database, events.CheckpointDeleting(uuid=uuid), force=force)
    remove_files(storage, uuid)
    _record(database, events.CheckpointDeleted(uuid=uuid, resources={}))
    return {}


def remove_files(storage: StorageBackend, uuid: str) -> None:
    """Remove everything of a checkpoint, the manifest first."""
    storage.delete([f"{check_id(uuid)}/{MANIFEST_FILE}"])
    storage.delete_tree(uuid)


def finish_part(storage: StorageBackend, manifest: Manifest, kept: Collection[str]) -> Manifest:
    """Finish a partial deletion that was interrupted.

    Args:
        storage: Storage of the checkpoint.
        manifest: Its current manifest.
        kept: Recorded names to keep; those of empty folders end in ``/``.

    Returns:
        The manifest of the remaining files.
    """
    left = dataclasses.replace(
        manifest,
        files={name: digest for name, digest in manifest.files.items() if name in kept},
        directories=tuple(sorted(name[:-1] for name in kept if name.endswith("/"))),
    )
    from detcore.storage import is_safe_key

    # Unsafe names such as "../x" were not written by detcore, and cannot be deleted.
    keys = [entry.key for entry in storage.list(left.uuid) if is_safe_key(entry.key)]
    there = {key.partition("/")[2] for key in keys}
    _remove_rest(storage, manifest, left, there - set(left.files) - {MANIFEST_FILE})
    return left


def _remove_rest(
    storage: StorageBackend, manifest: Manifest, left: Manifest, gone: Collection[str]
) -> None:
    """Remove some files of a checkpoint, from its manifest first."""
    uuid = left.uuid
    if left != manifest:
        storage.replace(f"{uuid}/{MANIFEST_FILE}", encode_manifest(left))
    storage.delete(f"{uuid}/{name}" for name in sorted(gone))
    root = storage.direct_path(uuid)
    if root is None:
        return
    for folder in sorted(root.rglob("*/"), reverse=True):
        if folder.relative_to(root).as_posix() not in left.directories:
            with contextlib.suppress(OSError):  # the folder is not empty
                folder.rmdir()
    make_folders(storage, uuid, left.directories)


def _record(
    database: CheckpointRecords | None, change: events.CheckpointEvent, *, force: bool = False
) -> None:
    if database is not None:
        with contextlib.suppress(NotFoundError):  # belongs to another database, in shared storage
            database.record_checkpoint(change, force=force)


@dataclasses.dataclass(frozen=True, slots=True)
class Split:
    """Names that patterns remove from a checkpoint, and folders that become empty.

    Attributes:
        gone_files: Files that match, or lie in a folder that matches.
        gone_folders: Folders that match, or lie in one that matches.
        empty_folders: Folders that become empty.
    """

    gone_files: frozenset[str]
    gone_folders: frozenset[str]
    empty_folders: tuple[str, ...]


def split_by_globs(
    files: Collection[str], directories: Collection[str], globs: Iterable[str]
) -> Split:
    """Apply patterns by the rules of `pathlib.Path.glob`, relative to the checkpoint.

    ``**`` as a whole part stands for any folders, ``*`` for anything within one name, including
    hidden names, and ``**.txt`` is the same as ``*.txt``. A folder that matches is removed with its
    contents; ``folder/*`` leaves the folder, empty.

    Args:
        files: Names of the files, as relative POSIX paths.
        directories: Names of the empty folders.
        globs: The patterns.

    Raises:
        UnsafePathError: If a pattern is absolute or has a part ``..``.
    """
    patterns = [_parts(pattern) for pattern in globs]
    folders = {parent for name in (*files, *directories) for parent in list_parent_names(name)}
    folders.update(directories)

    def is_named(name: str, *, is_folder: bool) -> bool:
        pieces = name.split("/") if name else []
        return any(_matches(pieces, parts, is_folder=is_folder) for parts in patterns)

    named = {folder for folder in ("", *folders) if is_named(folder, is_folder=True)}
    gone_folders = {
        f for f in folders if f in named or not named.isdisjoint(("", *list_parent_names(f)))
    }
    gone_files = {
        file
        for file in files
        if not named.isdisjoint(("", *list_parent_names(file))) or is_named(file, is_folder=False)
    }
    left = (set(files) - gone_files) | (folders - gone_folders)
    filled = {parent for name in left for parent in list_parent_names(name)}
    return Split(
        gone_files=frozenset(gone_files),
        gone_folders=frozenset(gone_folders),
        empty_folders=tuple(sorted(folders - gone_folders - filled)),
    )


def _parts(pattern: str) -> list[str]:
    parts = [part for part in pattern.split("/") if part not in ("", ".")]
    if pattern.startswith("/") or ".." in parts or not parts:
        raise UnsafePathError(
            f"the pattern {pattern!r} is refused: patterns are relative to the checkpoint and "
            "have no '..'.\nEverything is '**/*'."
        )
    # Several "**" in a row mean the same as one, and each adds to the running time.
    return [
        part
        for part, before in zip(parts, ["", *parts], strict=False)
        if (part, before) != ("**", "**")
    ]


def _matches(pieces: list[str], parts: list[str], *, is_folder: bool) -> bool:
    # All ways to match are followed in parallel: tried one after another, several "**" parts would
    # give too many combinations.
    reached = _with_skips({0}, parts)
    for piece in pieces:
        after = {
            index if parts[index] == "**" else index + 1
            for index in reached
            if index < len(parts)
            and (parts[index] == "**" or fnmatch.fnmatchcase(piece, parts[index]))
        }
        reached = _with_skips(after, parts)
    # As the last part, "**" matches folders, including the checkpoint's root.
    is_below = is_folder and parts[-1] == "**" and len(parts) - 1 in reached
    return len(parts) in reached or is_below


def _with_skips(reached: set[int], parts: list[str]) -> set[int]:
    """Add the part after each "**", which may match no folder at all."""
    last = len(parts) - 1
    return reached | {index + 1 for index in reached if index < last and parts[index] == "**"}
