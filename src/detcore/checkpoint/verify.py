"""Verify that a checkpoint matches its manifest."""

from __future__ import annotations

import dataclasses
import os
import stat
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from detcore.checkpoint.manifest import Manifest, read_manifest
from detcore.checkpoint.manifest_fields import MANIFEST_FILE, check_id, format_value
from detcore.contract.errors import (
    CheckpointCorruptError,
    CheckpointNotFoundError,
    UnsafePathError,
    in_one_line,
)

if TYPE_CHECKING:
    from detcore.storage import FileDigest, StorageBackend, TransferObserver


@dataclasses.dataclass(frozen=True, slots=True)
class Fault:
    """A file that differs from the manifest.

    Attributes:
        name: The file, below the checkpoint.
        reason: Description of the difference.
        is_stray: Whether the file does not belong to the checkpoint, which is harmless.
    """

    name: str
    reason: str
    is_stray: bool = False

    def __str__(self) -> str:
        return f"{self.shown_name}: {self.reason}"

    @property
    def shown_name(self) -> str:
        """The name in printable form: stored names may contain terminal control sequences."""
        return self.name if self.name.isprintable() else format_value(self.name)


def verify_checkpoint(
    storage: StorageBackend,
    uuid: str,
    *,
    observer: TransferObserver | None = None,
    reads_files: bool = True,
) -> list[Fault]:
    """Compare a checkpoint in place with its manifest.

    Args:
        storage: Storage of the checkpoint.
        uuid: UUID of the checkpoint.
        observer: Receives the progress of reading, or None.
        reads_files: Whether to read all files. Otherwise only their names and sizes are compared.

    Returns:
        The faults, sorted by file; empty if the checkpoint is intact. Files that the manifest does
        not list are faults as well.
    """
    try:
        there = list_stored_sizes(storage, uuid)
        manifest = read_manifest(storage, uuid, sizes=there)
    except (CheckpointCorruptError, CheckpointNotFoundError) as error:
        return [Fault(MANIFEST_FILE, in_one_line(*str(error).splitlines()[:2]))]
    if reads_files:
        faults = _compare_files(storage, manifest, there, observer)
    else:
        faults = compare_sizes(storage, manifest, manifest.files, there)
    for name in sorted(set(there) - set(manifest.files) - {MANIFEST_FILE}):
        faults.append(Fault(name, "is not in the manifest", is_stray=True))
    faults.extend(_find_missing_directories(storage, manifest))
    return sorted(faults, key=lambda fault: fault.name)


def check_in_place(
    storage: StorageBackend, manifest: Manifest, *, observer: TransferObserver | None = None
) -> None:
    """Check all files of a checkpoint in place.

    Raises:
        CheckpointCorruptError: If a file is missing or has changed; the message names it.
    """
    there = list_stored_sizes(storage, manifest.uuid)
    raise_faults(storage, manifest.uuid, _compare_files(storage, manifest, there, observer))


def raise_faults(
    storage: StorageBackend,
    uuid: str,
    faults: Sequence[Fault],
    cause: BaseException | None = None,
) -> None:
    """Raise an error that describes the faults; without faults, do nothing.

    Raises:
        CheckpointCorruptError: If there are faults; the message names the first file.
    """
    if not faults:
        return
    more = f" (and {len(faults) - 1} more)" if len(faults) > 1 else ""
    raise CheckpointCorruptError(
        f"checkpoint {uuid} in {storage.url} is damaged: {faults[0]}{more}.\n"
        f"Show all faults with:  detcore checkpoint verify {uuid}\n"
        "Choose another checkpoint with:  detcore checkpoint list"
    ) from cause


def list_stored_sizes(storage: StorageBackend, uuid: str) -> dict[str, int]:
    """Return the sizes of a checkpoint's stored files, by name.

    Raises:
        UnsafePathError: If the UUID is invalid.
        CheckpointCorruptError: If the checkpoint's directory is a link that leads out of the
            storage.
    """
    start = len(check_id(uuid)) + 1
    try:
        return {entry.key[start:]: entry.size for entry in storage.list(uuid)}
    except UnsafePathError as error:
        raise_faults(storage, uuid, [Fault(".", str(error).partition("\n")[0].rstrip("."))], error)
        raise


def _compare_files(
    storage: StorageBackend,
    manifest: Manifest,
    there: Mapping[str, int],
    observer: TransferObserver | None,
) -> list[Fault]:
    """Compare names and sizes, which is cheap, then the contents of the remaining files."""
    from detcore.storage import track_transfer

    faults = compare_sizes(storage, manifest, manifest.files, there)
    faulty = {fault.name for fault in faults}
    intact_names = [name for name in manifest.files if name not in faulty]
    total = sum(manifest.files[name].size for name in intact_names)
    with track_transfer(observer, f"checking {manifest.uuid[:8]}", total) as progress:
        digests = storage.digest_tree(
            [f"{manifest.uuid}/{name}" for name in intact_names],
            progress=progress,
        )
    return faults + compare_digests(manifest, digests)


def compare_sizes(
    storage: StorageBackend, manifest: Manifest, names: Iterable[str], there: Mapping[str, int]
) -> list[Fault]:
    """Return the files that are missing, are not regular files, or have another size.

    No file is read, so that a file of unexpected size is never opened.

    Args:
        storage: Storage of the checkpoint.
        manifest: Its manifest.
        names: The files to check.
        there: Size of each stored file by name.
    """
    faults = []
    root = storage.direct_path(manifest.uuid)
    for name in names:
        expected = manifest.files[name].size
        reason = None
        if name not in there:
            reason = "is missing"
        elif root is not None:
            reason = _describe_non_file(root, name)
        if reason is None and there[name] != expected:
            reason = f"has {there[name]} bytes instead of {expected}"
        if reason is not None:
            faults.append(Fault(name, reason))
    return faults


def compare_digests(manifest: Manifest, digests: Mapping[str, FileDigest]) -> list[Fault]:
    """Return the files whose digests, given by storage key, differ from the manifest."""
    faults = []
    for key, digest in digests.items():
        name = key[len(manifest.uuid) + 1 :]
        expected = manifest.files[name]
        if digest.size != expected.size:
            faults.append(Fault(name, f"has {digest.size} bytes instead of {expected.size}"))
        elif digest != expected:
            change = f"its digest is {digest.value[:12]}..., not {expected.value[:12]}..."
            faults.append(Fault(name, f"has changed: {change}"))
    return faults


def _describe_non_file(root: Path, name: str) -> str | None:
    """Return why a path is not a file of the checkpoint, or None, without opening it."""
    path = root / name
    mode = os.lstat(path).st_mode
    if stat.S_ISREG(mode):
        return None
    if not stat.S_ISLNK(mode):
        return f"is {describe_file_kind(mode)}, not a file"
    target = os.path.realpath(path)
    if os.path.commonpath([os.path.realpath(root), target]) != os.path.realpath(root):
        return f"is a link that leads out of the checkpoint, to {format_value(target)}"
    return None if os.path.isfile(target) else "is a link whose target is not a file"


def _find_missing_directories(storage: StorageBackend, manifest: Manifest) -> list[Fault]:
    """Return missing empty directories, which only file systems store."""
    root = storage.direct_path(manifest.uuid)
    if root is None:
        return []
    faults = []
    for name in manifest.directories:
        path = root / name
        if path.is_symlink():
            faults.append(Fault(f"{name}/", "is a link, not a directory"))
        elif not path.is_dir():
            faults.append(Fault(f"{name}/", "is missing"))
    return faults


def describe_file_kind(mode: int) -> str:
    """Return a description of a special file, given its mode."""
    kinds = {
        stat.S_IFDIR: "a directory",
        stat.S_IFIFO: "a named pipe",
        stat.S_IFSOCK: "a socket",
    }
    return kinds.get(stat.S_IFMT(mode), "a device")
