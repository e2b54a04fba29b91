"""Commit the contents of a directory as a checkpoint: files first, the manifest last."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from detcore.checkpoint.manifest import (
    METADATA_FILE,
    Manifest,
    decode_manifest,
    encode_manifest,
)
from detcore.checkpoint.manifest_fields import MANIFEST_FILE
from detcore.checkpoint.verify import describe_file_kind, list_stored_sizes
from detcore.contract.errors import (
    CheckpointConflictError,
    CheckpointCorruptError,
    InvalidCheckpointError,
    UnsafePathError,
)
from detcore.log import events

if TYPE_CHECKING:
    from detcore.contract.values import SaveTimes
    from detcore.storage import FileDigest, StorageBackend, TransferObserver


Selector: TypeAlias = Callable[[str], bool]
"""Returns whether to include a relative POSIX path; empty directories end in ``/``."""


@dataclasses.dataclass(frozen=True, slots=True)
class Scan:
    """Contents of a directory.

    Attributes:
        files: Path of each file by its name below the directory.
        directories: Names of empty directories.
    """

    files: dict[str, Path]
    directories: tuple[str, ...]

    def size_bytes(self) -> int:
        """Return the sum of the files' current sizes; reads each file's status."""
        return sum(path.stat().st_size for path in self.files.values())


def scan_directory(folder: Path, selector: Selector | None = None) -> Scan:
    """List the files below a directory, and refuse files that cannot be saved safely.

    Links to files inside the directory count as files.

    Args:
        folder: The directory; nothing is written to it.
        selector: Selects the files and empty directories to save. Default: all.

    Raises:
        InvalidCheckpointError: If it is not a directory, or contains something other than files and
            directories, or a file with the manifest's name.
        UnsafePathError: If a name is unsafe, or a link leads out of the directory.
    """
    if not folder.is_dir():
        problem = "is not a directory" if folder.exists() else "does not exist"
        raise InvalidCheckpointError(f"the checkpoint directory {folder} {problem}")
    files: dict[str, Path] = {}
    directories: list[str] = []
    _collect_files(folder, "", os.path.realpath(folder), files, directories)
    if selector is not None:
        files = {name: path for name, path in files.items() if selector(name)}
        directories = [name for name in directories if selector(f"{name}/")]
    is_folder = any(name.split("/", 1)[0] == MANIFEST_FILE for name in (*files, *directories))
    if is_folder or MANIFEST_FILE in files:
        problem = "a file" if MANIFEST_FILE in files else "a directory"
        raise InvalidCheckpointError(
            f"{folder} holds {problem} called {MANIFEST_FILE}.\n"
            "detcore writes its manifest under that name.\n"
            "Rename it, or move it into a subfolder."
        )
    return Scan(files, tuple(directories))


def _collect_files(
    folder: Path, prefix: str, root: str, files: dict[str, Path], directories: list[str]
) -> None:
    from detcore.storage import check_key

    is_empty = True
    with os.scandir(folder) as entries:
        for entry in sorted(entries, key=lambda entry: entry.name):
            is_empty = False
            name = check_key(f"{prefix}{entry.name}")
            if entry.is_symlink():
                _check_link(entry, name, root)
            if entry.is_dir(follow_symlinks=False):
                _collect_files(Path(entry.path), f"{name}/", root, files, directories)
            elif entry.is_file():
                files[name] = Path(entry.path)
            else:
                kind = describe_file_kind(entry.stat(follow_symlinks=False).st_mode)
                raise InvalidCheckpointError(
                    f"{entry.path} is {kind}, which cannot be saved.\n"
                    "A checkpoint holds files and directories."
                )
    if is_empty and prefix:
        directories.append(prefix.rstrip("/"))


def _check_link(entry: os.DirEntry[str], name: str, root: str) -> None:
    target = os.path.realpath(entry.path)
    if os.path.commonpath([root, target]) != root:
        raise UnsafePathError(
            f"{name!r} is a link that leads out of the checkpoint directory, to {target}.\n"
            "The target may change or be deleted, and would not be saved.\n"
            "Copy the file into the directory instead."
        )
    if not os.path.isfile(target):
        kind = "to a directory" if os.path.isdir(target) else "whose target is missing"
        raise InvalidCheckpointError(
            f"{name!r} is a link {kind}.\nOnly links to files in the same directory can be saved."
        )


class CheckpointRecords(Protocol):
    """Receives changes of checkpoints: a trial's event log, or a `detcore.records.Database`."""

    def record_checkpoint(
        self, change: events.CheckpointEvent, *, trial_id: int | None = None, force: bool = False
    ) -> None:
        """Record a change of a checkpoint's state.

        Args:
            change: The change, which implies the new state.
            trial_id: Trial of a new checkpoint. Ignored by a trial's event log.
            force: Whether files of a checkpoint in the model registry may be deleted.
        """


def write_files(
    storage: StorageBackend,
    uuid: str,
    scan: Scan,
    *,
    is_in_place: bool = False,
    observer: TransferObserver | None = None,
    check: Callable[[], None] = lambda: None,
) -> dict[str, FileDigest]:
    """Copy files to an uncommitted checkpoint, or flush files that are in place to the disk.

    Args:
        storage: Storage of the checkpoint.
        uuid: The checkpoint.
        scan: Its files.
        is_in_place: Whether the files are already in the storage.
        observer: Receives the progress, or None.
        check: Called between chunks, on any thread. Its exception aborts the transfer.
    """
    from detcore.storage import track_transfer

    digests: dict[str, FileDigest] = {}
    if scan.files:
        # Sizes are read only if there is an observer.
        total = scan.size_bytes() if observer else 0
        with track_transfer(observer, f"saving {uuid[:8]}", total) as advance:

            def report_progress(size: int) -> None:
                check()
                if advance is not None:
                    advance(size)

            if is_in_place:
                keys = [f"{uuid}/{name}" for name in scan.files]
                digests = storage.digest_tree(keys, make_durable=True, progress=report_progress)
            else:
                pairs = [(path, f"{uuid}/{name}") for name, path in scan.files.items()]
                digests = storage.put_tree(pairs, progress=report_progress)
    if not is_in_place:
        create_directories(storage, uuid, scan.directories)
    return _strip_uuid(uuid, digests)


def create_directories(storage: StorageBackend, uuid: str, names: Iterable[str]) -> None:
    """Create empty directories on storages that support them; the manifest always lists them."""
    for name in names:
        path = storage.direct_path(f"{uuid}/{name}")
        if path is not None:
            path.mkdir(parents=True, exist_ok=True)


def add_metadata(
    storage: StorageBackend, uuid: str, metadata: Mapping[str, Any]
) -> dict[str, FileDigest]:
    """Write ``metadata.json`` to a checkpoint that has no file of that name."""
    key = f"{uuid}/{METADATA_FILE}"
    storage.replace(key, (json.dumps(metadata, indent=2) + "\n").encode())
    return _strip_uuid(uuid, storage.digest_tree([key]))


def commit_manifest(storage: StorageBackend, manifest: Manifest) -> None:
    """Write the manifest, so that the checkpoint exists.

    Raises:
        CheckpointCorruptError: If the storage does not contain the files that were written.
        CheckpointConflictError: If another checkpoint was committed under the same UUID.
    """
    _check_stored_sizes(storage, manifest)
    key = f"{manifest.uuid}/{MANIFEST_FILE}"
    try:
        storage.create(key, encode_manifest(manifest))
    except FileExistsError as error:
        # Either an earlier attempt succeeded and its response was lost, or a second writer exists.
        stored = decode_manifest(storage.read(key), manifest.uuid, storage.url)
        if stored.files != manifest.files:
            raise CheckpointConflictError(
                f"another process committed checkpoint {manifest.uuid} in {storage.url} with "
                "other files.\nTwo processes must not save under the same UUID."
            ) from error


def record_committed(
    records: CheckpointRecords,
    storage: StorageBackend,
    manifest: Manifest,
    times: SaveTimes | None = None,
) -> None:
    """Record that a checkpoint is complete; idempotent."""
    path = storage.direct_path(manifest.uuid)
    records.record_checkpoint(
        events.CheckpointCommitted(
            uuid=manifest.uuid,
            steps_completed=manifest.steps_completed,
            metadata=manifest.metadata,
            resources=manifest.resources(),
            url=f"{storage.url}/{manifest.uuid}",
            path=None if path is None else str(path),
            size_bytes=manifest.size_bytes,
            stalled_s=None if times is None else times.stalled_s,
            total_s=None if times is None else times.total_s,
        )
    )


def _check_stored_sizes(storage: StorageBackend, manifest: Manifest) -> None:
    """Compare the storage's listing with the written files before the checkpoint counts."""
    stored_sizes = list_stored_sizes(storage, manifest.uuid)
    for name, digest in manifest.files.items():
        if stored_sizes.get(name) != digest.size:
            problem = (
                "is not stored_sizes"
                if name not in stored_sizes
                else f"has {stored_sizes[name]} bytes"
            )
            raise CheckpointCorruptError(
                f"checkpoint {manifest.uuid} was not committed: {name} {problem} in {storage.url}, "
                f"although {digest.size} bytes were written.\n"
                "Another program changed the files while they were being saved."
            )


def _strip_uuid(uuid: str, digests: Mapping[str, FileDigest]) -> dict[str, FileDigest]:
    return {key[len(uuid) + 1 :]: digest for key, digest in digests.items()}


@contextlib.contextmanager
def open_staging_directory(storage: StorageBackend, key: str) -> Iterator[tuple[Path, bool]]:
    """Yield a new directory, and whether it is on the storage's file system.

    On the storage's file system, the directory is the path of the key and stays. Otherwise it is
    removed after the block.
    """
    direct = storage.direct_path(key)
    if direct is not None:
        direct.mkdir(parents=True)
        yield direct, True
        return
    from detcore.storage import scratch_directory

    with scratch_directory() as temporary:
        yield temporary, False
