"""Save a checkpoint to which every worker contributes a part."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shutil
import socket
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from detcore.checkpoint.commit import (
    Scan,
    create_directories,
    open_staging_directory,
    scan_directory,
    write_files,
)
from detcore.checkpoint.manifest_fields import check_metadata, convert_metadata, list_parent_names
from detcore.checkpoint.restore import run_on_all
from detcore.contract.errors import CheckpointConflictError, InvalidCheckpointError
from detcore.storage import FileDigest, StorageBackend, digest_file

if TYPE_CHECKING:
    from detcore.checkpoint.commit import Selector
    from detcore.checkpoint.save import Save, Saver
    from detcore.distributed import DistributedContext


_NOTHING = Scan({}, ())


@dataclasses.dataclass(frozen=True, slots=True)
class _WorkerPart:
    """Values that a worker sends to the others before any file is written."""

    part: Part
    has_folder: bool
    metadata: Mapping[str, Any]
    versions: Mapping[str, str]


class ShardedSaver:
    """Saves checkpoints jointly with the other workers, which all call the same methods.

    Args:
        saver: Records and commits the checkpoint, on the chief.
        storage: Storage to which every worker writes its part.
        distributed: This worker's rank and its peers.
    """

    def __init__(
        self, saver: Saver, storage: StorageBackend, distributed: DistributedContext
    ) -> None:
        self._saver = saver
        self._storage = storage
        self._distributed = distributed
        self._save: Save | None = None  # on the chief

    def upload(
        self,
        folder: Path | None,
        metadata: Mapping[str, Any] | None,
        selector: Selector | None,
    ) -> str:
        """Save the directories of all workers as one checkpoint; return its UUID everywhere."""
        scan = _NOTHING

        def scan_part() -> _WorkerPart:
            nonlocal scan
            if folder is None and selector is not None:
                raise InvalidCheckpointError(
                    "upload() was called with a selector but without ckpt_dir.\n"
                    "Pass both, or neither on a worker that has nothing to save."
                )
            scan = _NOTHING if folder is None else scan_directory(folder, selector)
            identity = (
                None if folder is None or selector is not None else _identify_directory(folder)
            )
            return self._describe_part(scan, identity, metadata)

        parts = self._run_on_all(scan_part)
        shares, merged = self._agree_on_shares(parts, scan)
        with self._start_save(merged) as uuid:
            share = _select_files(scan, shares.list_names(self._distributed.rank))
            self._write_and_commit(uuid, share, shares, parts, is_in_place=False)
        return uuid

    @contextlib.contextmanager
    def save_directory(self, metadata: Mapping[str, Any] | None) -> Iterator[tuple[Path, str]]:
        """Yield each worker a separate directory, then save them all as one checkpoint."""
        before = self._run_on_all(lambda: self._describe_part(_NOTHING, None, metadata))
        merged = _merge_checked_metadata(before)
        with (
            self._start_save(merged) as uuid,
            self._open_staging_directory(uuid) as (folder, is_in_place),
        ):
            failure: Exception | None = None
            scan = _NOTHING
            try:
                yield folder, uuid
            except Exception as error:  # noqa: BLE001  (raised again after notifying the others)
                failure = error

            def scan_part() -> _WorkerPart:
                nonlocal scan
                if failure is not None:
                    raise failure
                scan = scan_directory(folder)
                return self._describe_part(scan, None, metadata)

            parts = self._run_on_all(scan_part)
            shares, _ = self._agree_on_shares(parts, scan)
            share = _select_files(scan, shares.list_names(self._distributed.rank))
            if is_in_place:
                self._run_on_all(lambda: self._move_files(uuid, share, folder))
            self._write_and_commit(uuid, share, shares, parts, is_in_place=is_in_place)

    def _describe_part(
        self, scan: Scan, identity: tuple[str, int, int] | None, metadata: Mapping[str, Any] | None
    ) -> _WorkerPart:
        sizes = {name: path.stat().st_size for name, path in scan.files.items()}
        return _WorkerPart(
            part=Part(files=sizes, directories=scan.directories, folder=identity),
            has_folder=scan is not _NOTHING,
            metadata=convert_metadata(metadata),
            versions=dict(self._saver.versions),
        )

    def _run_on_all(self, action: Any) -> list[Any]:
        return run_on_all(self._distributed.allgather, action)

    def _agree_on_shares(
        self, parts: list[_WorkerPart], scan: Scan
    ) -> tuple[Shares, dict[str, Any]]:
        """Return each worker's share and the merged metadata; a conflict raises on all workers."""
        if not any(part.has_folder for part in parts):
            raise InvalidCheckpointError(
                "upload() was called with ckpt_dir=None on all workers.\n"
                "At least one worker must pass a directory to save."
            )
        merged = _merge_checked_metadata(parts)
        shares = share_out([part.part for part in parts])
        if shares.contested:
            check_contested_files(
                shares, self._run_on_all(lambda: _compute_digests(scan, shares.contested))
            )
        return shares, merged

    @contextlib.contextmanager
    def _start_save(self, metadata: Mapping[str, Any]) -> Iterator[str]:
        """Record a new checkpoint on the chief, which removes all traces if the block raises."""
        with contextlib.ExitStack() as stack:

            def start() -> str | None:
                if self._distributed.rank:
                    return None
                self._save = stack.enter_context(self._saver._start_save(metadata))
                return self._save.uuid

            uuid = self._run_on_all(start)[0]
            yield str(uuid)
        if self._save is not None:
            self._saver._record_end(self._save)

    @contextlib.contextmanager
    def _open_staging_directory(self, uuid: str) -> Iterator[tuple[Path, bool]]:
        """Yield a directory to write to, and whether it is on the storage's file system.

        On the storage's file system, the directory is inside the checkpoint, which has no manifest
        yet, and is removed on failure.
        """
        with contextlib.ExitStack() as stack:
            directories: list[tuple[Path, bool]] = []

            def create() -> None:
                key = f"{uuid}/.worker-{self._distributed.rank}"
                directories.append(stack.enter_context(open_staging_directory(self._storage, key)))

            self._run_on_all(create)
            yield directories[0]

    def _move_files(self, uuid: str, share: Scan, staging: Path) -> None:
        """Move this worker's files from its staging directory into the checkpoint."""
        # Links come first, because their targets in the same directory are moved afterwards.
        for name, path in sorted(share.files.items(), key=lambda item: not item[1].is_symlink()):
            target = self._storage.direct_path(f"{uuid}/{name}")
            assert target is not None  # the staging directory is in the same storage
            target.parent.mkdir(parents=True, exist_ok=True)
            if path.is_symlink():
                shutil.copyfile(path, target)
            else:
                os.rename(path, target)
        shutil.rmtree(staging)

    def _write_and_commit(
        self, uuid: str, share: Scan, shares: Shares, parts: list[_WorkerPart], *, is_in_place: bool
    ) -> None:
        """Write this worker's files; the chief commits after all workers have written theirs."""
        observer = self._saver._observer
        digests_by_rank = self._run_on_all(
            lambda: write_files(
                self._storage, uuid, share, is_in_place=is_in_place, observer=observer
            )
        )

        def commit() -> None:
            save = self._save
            if save is None:
                return
            digests: dict[str, FileDigest] = {
                name: digest for part in digests_by_rank for name, digest in part.items()
            }
            create_directories(self._storage, uuid, shares.directories)
            save.versions = {
                name: version for part in reversed(parts) for name, version in part.versions.items()
            }
            self._saver._commit_files(save, digests, shares.directories)

        self._run_on_all(commit)


def _merge_checked_metadata(parts: list[_WorkerPart]) -> dict[str, Any]:
    return check_metadata(merge_metadata([part.metadata for part in parts]))


def _identify_directory(folder: Path) -> tuple[str, int, int]:
    status = folder.stat()
    return socket.gethostname(), status.st_dev, status.st_ino


def _select_files(scan: Scan, names: list[str]) -> Scan:
    return Scan({name: scan.files[name] for name in names}, ())


def _compute_digests(scan: Scan, names: tuple[str, ...]) -> dict[str, FileDigest]:
    return {name: digest_file(scan.files[name]) for name in names if name in scan.files}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Files of one worker.

    Attributes:
        files: Size of each file by name; empty if the worker has no directory.
        directories: Empty directories.
        folder: Identity of its directory (machine, device and inode). None if the directory must
            not be treated as the same as another worker's directory: with a selector, or without a
            directory.
    """

    files: Mapping[str, int]
    directories: Sequence[str] = ()
    folder: tuple[str, int, int] | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Shares:
    """Assignment of files to workers.

    Attributes:
        owners: Ranks that have a file of each name, in ascending order. The lowest rank saves it.
        directories: All empty directories.
        contested: Names of files that several workers have.
    """

    owners: Mapping[str, tuple[int, ...]]
    directories: tuple[str, ...]
    contested: tuple[str, ...]

    def list_names(self, rank: int) -> list[str]:
        """Return the names of the files that a rank saves."""
        return [name for name, ranks in self.owners.items() if ranks[0] == rank]


def share_out(parts: Sequence[Part]) -> Shares:
    """Assign the files of all workers to the workers that save them.

    If several workers pass the same directory without a selector, the lowest rank saves it.

    Args:
        parts: The files of each rank.

    Raises:
        CheckpointConflictError: If one worker has a file where another has a directory.
    """
    owners: dict[str, tuple[int, ...]] = {}
    folders: dict[str, int] = {}
    identities: set[tuple[str, int, int]] = set()
    for rank, part in enumerate(parts):
        if part.folder is not None and part.folder in identities:
            continue
        if part.folder is not None:
            identities.add(part.folder)
        for name in part.files:
            owners[name] = (*owners.get(name, ()), rank)
        for name in (
            *_collect_parents(part.files),
            *part.directories,
            *_collect_parents(part.directories),
        ):
            folders.setdefault(name, rank)
    both = sorted(set(owners) & set(folders))
    if both:
        name = both[0]
        raise _create_conflict_error(
            f"{name} is a file on rank {owners[name][0]} and a directory on rank {folders[name]}"
        )
    filled = set(_collect_parents(owners)) | set(_collect_parents(folders))
    empty = sorted(name for name in folders if name not in filled)
    contested = tuple(sorted(name for name, ranks in owners.items() if len(ranks) > 1))
    return Shares(owners, tuple(empty), contested)


def check_contested_files(shares: Shares, digests: Sequence[Mapping[str, Any]]) -> None:
    """Check that files of the same name on several workers have the same content.

    Args:
        shares: The assignment of the files.
        digests: For each rank, the digests of its contested files, by name.

    Raises:
        CheckpointConflictError: If two workers have different files of the same name.
    """
    different = []
    for name in shares.contested:
        first, *other_ranks = shares.owners[name]
        for rank in other_ranks:
            if digests[rank][name] != digests[first][name]:
                different.append(f"{name} is not the same on rank {first} and rank {rank}")
                break
    if different:
        more = f" (and {len(different) - 1} more)" if len(different) > 1 else ""
        raise _create_conflict_error(different[0] + more)


def merge_metadata(parts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Merge the metadata of all workers; dictionaries are merged key by key.

    Args:
        parts: Metadata of each rank, as plain JSON values.

    Raises:
        CheckpointConflictError: If two workers have different values for the same key; the message
            names the key as a path with slashes.
    """
    merged: dict[str, Any] = {}
    for rank, part in enumerate(parts):
        _merge_into(merged, part, "", rank)
    return merged


def _merge_into(into: dict[str, Any], part: Mapping[str, Any], where: str, rank: int) -> None:
    for key, value in part.items():
        path = f"{where}{key}"
        if key not in into:
            into[key] = _copy_value(value)
        elif isinstance(into[key], dict) and isinstance(value, Mapping):
            _merge_into(into[key], value, f"{path}/", rank)
        elif _is_different(into[key], value):
            raise _create_conflict_error(
                f"the metadata {path!r} is {value!r} on rank {rank}, and {into[key]!r} on another"
            )


def _copy_value(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _copy_value(item) for key, item in value.items()}
    return value


def _is_different(first: object, second: object) -> bool:
    return type(first) is not type(second) or first != second


def _collect_parents(names: Iterable[str]) -> set[str]:
    return {parent for name in names for parent in list_parent_names(name)}


def _create_conflict_error(conflict: str) -> CheckpointConflictError:
    return CheckpointConflictError(
        f"the parts of a sharded checkpoint conflict: {conflict}.\n"
        "Nothing was written.\n"
        "Use different file names on each worker, or save shared files on one worker only."
    )
