"""Delete checkpoints, or the files in them that match patterns."""

from __future__ import annotations

import contextlib
import dataclasses
import fnmatch
from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING

from detcore.checkpoint.commit import CheckpointRecords, create_directories
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

    The deletion is recorded first, then the manifest is removed, then the files. An interruption
    therefore leaves files without a manifest, never a checkpoint with missing files. The trial's
    next start removes such files. Deleting a deleted checkpoint has no effect.

    Args:
        storage: Storage of the checkpoint.
        uuid: UUID of the checkpoint.
        database: Records of the checkpoint, or None.
        globs: Patterns as in `pathlib.Path.glob`. A matching directory is deleted with its
            contents. ``["**/*"]`` and None delete the whole checkpoint.
        force: Whether to also delete a checkpoint in the model registry.

    Returns:
        The remaining files and their sizes; names of empty directories end in ``/``.

    Raises:
        CheckpointNotFoundError: If patterns are given and the checkpoint is not committed.
        CheckpointStateError: If it is in the model registry; nothing was deleted.
        UnsafePathError: If a pattern leads out of the checkpoint.
    """
    check_id(uuid)
    if globs is not None:
        manifest = read_manifest(storage, uuid)
        plan = split_by_globs(manifest.files, manifest.directories, globs)
        if not plan.deleted_files and not plan.deleted_directories:
            return manifest.resources()
        remaining = dataclasses.replace(
            manifest,
            files={name: d for name, d in manifest.files.items() if name not in plan.deleted_files},
            directories=plan.empty_directories,
        )
        remaining_files = remaining.resources()
        if remaining_files:
            _record_change(
                database,
                events.CheckpointDeleted(uuid=uuid, resources=remaining_files),
                force=force,
            )
            _remove_listed_files(storage, manifest, remaining, plan.deleted_files)
            return remaining_files
    _record_change(database, events.CheckpointDeleting(uuid=uuid), force=force)
    remove_files(storage, uuid)
    _record_change(database, events.CheckpointDeleted(uuid=uuid, resources={}))
    return {}


def remove_files(storage: StorageBackend, uuid: str) -> None:
    """Remove all files of a checkpoint, the manifest first."""
    storage.delete([f"{check_id(uuid)}/{MANIFEST_FILE}"])
    storage.delete_tree(uuid)


def finish_partial_deletion(
    storage: StorageBackend, manifest: Manifest, kept: Collection[str]
) -> Manifest:
    """Finish a partial deletion that was interrupted.

    Args:
        storage: Storage of the checkpoint.
        manifest: Its current manifest.
        kept: Recorded names to keep; names of empty directories end in ``/``.

    Returns:
        The manifest of the remaining files.
    """
    remaining = dataclasses.replace(
        manifest,
        files={name: digest for name, digest in manifest.files.items() if name in kept},
        directories=tuple(sorted(name[:-1] for name in kept if name.endswith("/"))),
    )
    from detcore.storage import is_safe_key

    # Unsafe names such as "../x" were not written by detcore, and cannot be deleted.
    keys = [entry.key for entry in storage.list(remaining.uuid) if is_safe_key(entry.key)]
    stored_names = {key.partition("/")[2] for key in keys}
    _remove_listed_files(
        storage, manifest, remaining, stored_names - set(remaining.files) - {MANIFEST_FILE}
    )
    return remaining


def _remove_listed_files(
    storage: StorageBackend, manifest: Manifest, left: Manifest, gone: Collection[str]
) -> None:
    """Remove files of a checkpoint, first from its manifest."""
    uuid = left.uuid
    if left != manifest:
        storage.replace(f"{uuid}/{MANIFEST_FILE}", encode_manifest(left))
    storage.delete(f"{uuid}/{name}" for name in sorted(gone))
    root = storage.direct_path(uuid)
    if root is None:
        return
    for folder in sorted(root.rglob("*/"), reverse=True):
        if folder.relative_to(root).as_posix() not in left.directories:
            with contextlib.suppress(OSError):  # the directory is not empty
                folder.rmdir()
    create_directories(storage, uuid, left.directories)


def _record_change(
    database: CheckpointRecords | None, change: events.CheckpointEvent, *, force: bool = False
) -> None:
    if database is not None:
        with contextlib.suppress(
            NotFoundError
        ):  # recorded in another database that shares the storage
            database.record_checkpoint(change, force=force)


@dataclasses.dataclass(frozen=True, slots=True)
class DeletionPlan:
    """Names that a deletion by patterns removes, and directories that become empty.

    Attributes:
        deleted_files: Files that match, or are in a matching directory.
        deleted_directories: Directories that match, or are in a matching directory.
        empty_directories: Directories that become empty.
    """

    deleted_files: frozenset[str]
    deleted_directories: frozenset[str]
    empty_directories: tuple[str, ...]


def split_by_globs(
    files: Collection[str], directories: Collection[str], globs: Iterable[str]
) -> DeletionPlan:
    """Apply patterns by the rules of `pathlib.Path.glob`, relative to the checkpoint.

    ``**`` as a complete part matches any number of directories. ``*`` matches any characters within
    a name, including hidden names. ``**.txt`` is the same as ``*.txt``. A matching directory is
    removed with its contents; ``folder/*`` keeps the empty directory.

    Args:
        files: Names of the files, as relative POSIX paths.
        directories: Names of the empty directories.
        globs: The patterns.

    Raises:
        UnsafePathError: If a pattern is absolute or has a part ``..``.
    """
    patterns = [_split_pattern(pattern) for pattern in globs]
    folders = {parent for name in (*files, *directories) for parent in list_parent_names(name)}
    folders.update(directories)

    def is_matched(name: str, *, is_folder: bool) -> bool:
        name_parts = name.split("/") if name else []
        return any(_matches_pattern(name_parts, parts, is_folder=is_folder) for parts in patterns)

    matched_directories = {
        folder for folder in ("", *folders) if is_matched(folder, is_folder=True)
    }
    deleted_directories = {
        f
        for f in folders
        if f in matched_directories
        or not matched_directories.isdisjoint(("", *list_parent_names(f)))
    }
    deleted_files = {
        file
        for file in files
        if not matched_directories.isdisjoint(("", *list_parent_names(file)))
        or is_matched(file, is_folder=False)
    }
    remaining = (set(files) - deleted_files) | (folders - deleted_directories)
    filled = {parent for name in remaining for parent in list_parent_names(name)}
    return DeletionPlan(
        deleted_files=frozenset(deleted_files),
        deleted_directories=frozenset(deleted_directories),
        empty_directories=tuple(sorted(folders - deleted_directories - filled)),
    )


def _split_pattern(pattern: str) -> list[str]:
    parts = [part for part in pattern.split("/") if part not in ("", ".")]
    if pattern.startswith("/") or ".." in parts or not parts:
        raise UnsafePathError(
            f"invalid pattern {pattern!r}: patterns are relative to the checkpoint and must not "
            "contain '..'.\nTo match all files, use '**/*'."
        )
    # Consecutive "**" are redundant, and each increases the running time.
    return [
        part
        for part, before in zip(parts, ["", *parts], strict=False)
        if (part, before) != ("**", "**")
    ]


def _matches_pattern(name_parts: list[str], parts: list[str], *, is_folder: bool) -> bool:
    # All possible matches are followed in parallel. Backtracking over several "**" parts would take
    # exponential time.
    reached = _add_skips({0}, parts)
    for piece in name_parts:
        after = {
            index if parts[index] == "**" else index + 1
            for index in reached
            if index < len(parts)
            and (parts[index] == "**" or fnmatch.fnmatchcase(piece, parts[index]))
        }
        reached = _add_skips(after, parts)
    # A final "**" matches directories, including the checkpoint's root.
    is_below = is_folder and parts[-1] == "**" and len(parts) - 1 in reached
    return len(parts) in reached or is_below


def _add_skips(reached: set[int], parts: list[str]) -> set[int]:
    """Add the part after each "**", because "**" also matches zero directories."""
    last = len(parts) - 1
    return reached | {index + 1 for index in reached if index < last and parts[index] == "**"}
