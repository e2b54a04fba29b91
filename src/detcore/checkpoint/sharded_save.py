"""Save a checkpoint in parts, one from each worker."""

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
    make_folders,
    open_staging_directory,
    scan_directory,
    write_files,
)
from detcore.checkpoint.manifest_fields import check_metadata, list_parent_names, plain_metadata
from detcore.checkpoint.restore import together
from detcore.contract.errors import CheckpointConflictError, InvalidCheckpointError
from detcore.storage import FileDigest, StorageBackend, digest_file

if TYPE_CHECKING:
    from detcore.checkpoint.commit import Selector
    from detcore.checkpoint.save import Save, Saver
    from detcore.distributed import DistributedContext


_NOTHING = Scan({}, ())


@dataclasses.dataclass(frozen=True, slots=True)
class _Told:
    """Values that a worker sends to the others before anything is written."""

    part: Part
    has_folder: bool
    metadata: Mapping[str, Any]
    versions: Mapping[str, str]


class ShardedSaver:
    """Saves checkpoints together with the other workers; all of them call the same methods.

    Args:
        saver: Records and commits, on the chief.
        storage: Storage of the files; every worker writes its part.
        distributed: The workers.
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
        """Save the folders of all workers as one checkpoint; return its UUID on all of them."""
        scan = _NOTHING

        def look() -> _Told:
            nonlocal scan
            if folder is None and selector is not None:
                raise InvalidCheckpointError("upload() was given a selector but no ckpt_dir")
            scan = _NOTHING if folder is None else scan_directory(folder, selector)
            identity = None if folder is None or selector is not None else _identity(folder)
            return self._tell(scan, identity, metadata)

        told = self._together(look)
        shares, merged = self._agree(told, scan)
        with self._begun(merged) as uuid:
            mine = _only(scan, shares.of(self._distributed.rank))
            self._write(uuid, mine, shares, told, is_in_place=False)
        return uuid

    @contextlib.contextmanager
    def saving(self, metadata: Mapping[str, Any] | None) -> Iterator[tuple[Path, str]]:
        """Yield each worker a separate folder to write to; then save them as one checkpoint."""
        before = self._together(lambda: self._tell(_NOTHING, None, metadata))
        merged = _merged(before)
        with self._begun(merged) as uuid, self._staging(uuid) as (folder, is_in_place):
            failure: Exception | None = None
            scan = _NOTHING
            try:
                yield folder, uuid
            except Exception as error:  # noqa: BLE001  (raised again after notifying the others)
                failure = error

            def look() -> _Told:
                nonlocal scan
                if failure is not None:
                    raise failure
                scan = scan_directory(folder)
                return self._tell(scan, None, metadata)

            told = self._together(look)
            shares, _ = self._agree(told, scan)
            mine = _only(scan, shares.of(self._distributed.rank))
            if is_in_place:
                self._together(lambda: self._move_in(uuid, mine, folder))
            self._write(uuid, mine, shares, told, is_in_place=is_in_place)

    def _tell(
        self, scan: Scan, identity: tuple[str, int, int] | None, metadata: Mapping[str, Any] | None
    ) -> _Told:
        sizes = {name: path.stat().st_size for name, path in scan.files.items()}
        return _Told(
            part=Part(files=sizes, directories=scan.directories, folder=identity),
            has_folder=scan is not _NOTHING,
            metadata=plain_metadata(metadata),
            versions=dict(self._saver.versions),
        )

    def _together(self, action: Any) -> list[Any]:
        return together(self._distributed.allgather, action)

    def _agree(self, told: list[_Told], scan: Scan) -> tuple[Shares, dict[str, Any]]:
        """Return the share of each worker, and merged metadata; conflicts raise on all workers."""
        if not any(each.has_folder for each in told):
            raise InvalidCheckpointError(
                "upload() was called with ckpt_dir=None on all workers.\n"
                "At least one of them must have a folder to save."
            )
        merged = _merged(told)
        shares = share_out([each.part for each in told])
        if shares.contested:
            resolve(shares, self._together(lambda: _digests(scan, shares.contested)))
        return shares, merged

    @contextlib.contextmanager
    def _begun(self, metadata: Mapping[str, Any]) -> Iterator[str]:
        """Record a new checkpoint on the chief, which removes all traces if the block fails."""
        with contextlib.ExitStack() as stack:

            def begin() -> str | None:
                if self._distributed.rank:
                    return None
                self._save = stack.enter_context(self._saver._started(metadata))
                return self._save.uuid

            uuid = self._together(begin)[0]
            yield str(uuid)
        if self._save is not None:
            self._saver._record_end(self._save)

    @contextlib.contextmanager
    def _staging(self, uuid: str) -> Iterator[tuple[Path, bool]]:
        """Yield a folder to write to, and whether it is on the storage's own file system.

        If so, it lies within the checkpoint, which has no manifest yet, and is removed on failure.
        """
        with contextlib.ExitStack() as stack:
            made: list[tuple[Path, bool]] = []

            def make() -> None:
                key = f"{uuid}/.worker-{self._distributed.rank}"
                made.append(stack.enter_context(open_staging_directory(self._storage, key)))

            self._together(make)
            yield made[0]

    def _move_in(self, uuid: str, mine: Scan, staging: Path) -> None:
        """Move this worker's files from its own folder to their places."""
        # Links first: their targets are files of the same folder, which are moved afterwards.
        for name, path in sorted(mine.files.items(), key=lambda item: not item[1].is_symlink()):
            target = self._storage.direct_path(f"{uuid}/{name}")
            assert target is not None  # like the folder
            target.parent.mkdir(parents=True, exist_ok=True)
            if path.is_symlink():
                shutil.copyfile(path, target)
            else:
                os.rename(path, target)
        shutil.rmtree(staging)

    def _write(
        self, uuid: str, mine: Scan, shares: Shares, told: list[_Told], *, is_in_place: bool
    ) -> None:
        """Write this worker's files; after all have written theirs, the chief commits."""
        observer = self._saver._observer
        written = self._together(
            lambda: write_files(
                self._storage, uuid, mine, is_in_place=is_in_place, observer=observer
            )
        )

        def commit() -> None:
            save = self._save
            if save is None:
                return
            digests: dict[str, FileDigest] = {
                name: digest for part in written for name, digest in part.items()
            }
            make_folders(self._storage, uuid, shares.directories)
            save.versions = {
                name: text for each in reversed(told) for name, text in each.versions.items()
            }
            self._saver._commit(save, digests, shares.directories)

        self._together(commit)


def _merged(told: list[_Told]) -> dict[str, Any]:
    return check_metadata(merge_metadata([each.metadata for each in told]))


def _identity(folder: Path) -> tuple[str, int, int]:
    found = folder.stat()
    return socket.gethostname(), found.st_dev, found.st_ino


def _only(scan: Scan, names: list[str]) -> Scan:
    return Scan({name: scan.files[name] for name in names}, ())


def _digests(scan: Scan, names: tuple[str, ...]) -> dict[str, FileDigest]:
    return {name: digest_file(scan.files[name]) for name in names if name in scan.files}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Files of one worker.

    Attributes:
        files: Size of each file by name; empty if the worker has no folder.
        directories: Empty folders.
        folder: Identity of its folder (machine, device and inode). None if it must not be
            identified with another worker's folder: with a selector, or without a folder.
    """

    files: Mapping[str, int]
    directories: Sequence[str] = ()
    folder: tuple[str, int, int] | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Shares:
    """Division of the files.

    Attributes:
        owners: Ranks that have a file of each name, lowest first; the first one saves it.
        directories: All empty folders.
        contested: Names of files that several workers have.
    """

    owners: Mapping[str, tuple[int, ...]]
    directories: tuple[str, ...]
    contested: tuple[str, ...]

    def of(self, rank: int) -> list[str]:
        """Return the names that a rank saves."""
        return [name for name, ranks in self.owners.items() if ranks[0] == rank]


def share_out(parts: Sequence[Part]) -> Shares:
    """Divide the files of all workers between them.

    Workers that have the same folder, and no selectors, count as one: the lowest of them saves it.

    Args:
        parts: The files of each rank.

    Raises:
        CheckpointConflictError: If one worker has a file where another has a folder.
    """
    owners: dict[str, tuple[int, ...]] = {}
    folders: dict[str, int] = {}
    seen: set[tuple[str, int, int]] = set()
    for rank, part in enumerate(parts):
        if part.folder is not None and part.folder in seen:
            continue
        if part.folder is not None:
            seen.add(part.folder)
        for name in part.files:
            owners[name] = (*owners.get(name, ()), rank)
        for name in (*_parents(part.files), *part.directories, *_parents(part.directories)):
            folders.setdefault(name, rank)
    both = sorted(set(owners) & set(folders))
    if both:
        name = both[0]
        raise _conflict(
            f"{name} is a file on rank {owners[name][0]} and a folder on rank {folders[name]}"
        )
    filled = set(_parents(owners)) | set(_parents(folders))
    empty = sorted(name for name in folders if name not in filled)
    contested = tuple(sorted(name for name, ranks in owners.items() if len(ranks) > 1))
    return Shares(owners, tuple(empty), contested)


def resolve(shares: Shares, digests: Sequence[Mapping[str, Any]]) -> None:
    """Check that files of the same name on several workers have the same content.

    Args:
        shares: The division of the files.
        digests: For each rank, the digests of its contested files, by name.

    Raises:
        CheckpointConflictError: If two workers have different files of one name.
    """
    different = []
    for name in shares.contested:
        first, *others = shares.owners[name]
        for rank in others:
            if digests[rank][name] != digests[first][name]:
                different.append(f"{name} is not the same on rank {first} and rank {rank}")
                break
    if different:
        more = f" (and {len(different) - 1} more)" if len(different) > 1 else ""
        raise _conflict(different[0] + more)


def merge_metadata(parts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Merge the metadata of all workers; dictionaries are merged key by key.

    Args:
        parts: Metadata of each rank, as plain JSON values.

    Raises:
        CheckpointConflictError: If two workers have different values for one key; the message names
            it as a path with slashes.
    """
    merged: dict[str, Any] = {}
    for rank, part in enumerate(parts):
        _merge(merged, part, "", rank)
    return merged


def _merge(into: dict[str, Any], part: Mapping[str, Any], where: str, rank: int) -> None:
    for key, value in part.items():
        path = f"{where}{key}"
        if key not in into:
            into[key] = _copied(value)
        elif isinstance(into[key], dict) and isinstance(value, Mapping):
            _merge(into[key], value, f"{path}/", rank)
        elif _differ(into[key], value):
            raise _conflict(
                f"the metadata {path!r} is {value!r} on rank {rank}, and {into[key]!r} on another"
            )


def _copied(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _copied(item) for key, item in value.items()}
    return value


def _differ(first: object, second: object) -> bool:
    return type(first) is not type(second) or first != second


def _parents(names: Iterable[str]) -> set[str]:
    return {parent for name in names for parent in list_parent_names(name)}


def _conflict(what: str) -> CheckpointConflictError:
    return CheckpointConflictError(
        f"refusing to save a sharded checkpoint with conflicts: {what}.\n"
        "One of them would be lost. Nothing was written.\n"
        "Use different file names on each worker, or save common files on one worker only."
    )
