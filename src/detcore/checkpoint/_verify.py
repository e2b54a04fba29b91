"""Finding out whether a checkpoint is what its manifest says."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from detcore.checkpoint._manifest import MANIFEST_FILE, Manifest, read_manifest
from detcore.errors import CheckpointCorruptError, CheckpointNotFoundError

if TYPE_CHECKING:
    from detcore.storage import FileDigest, StorageBackend

__all__ = ["Fault", "check_copies", "check_in_place", "corrupt", "verify_checkpoint"]


@dataclasses.dataclass(frozen=True, slots=True)
class Fault:
    """A file that is not what the manifest says.

    Attributes:
        name: The file, below the checkpoint.
        reason: What is wrong with it.
        is_stray: Whether it is a file that does not belong to the checkpoint, which harms nothing.
    """

    name: str
    reason: str
    is_stray: bool = False

    def __str__(self) -> str:
        return f"{self.name}: {self.reason}"


def verify_checkpoint(storage: StorageBackend, uuid: str) -> list[Fault]:
    """Read a whole checkpoint where it is and compare it with its manifest.

    Args:
        storage: Where it is.
        uuid: Which.

    Returns:
        What is wrong, by file; nothing if all is well. Files that the manifest does not name
        count as faults, too.
    """
    try:
        manifest = read_manifest(storage, uuid)
    except (CheckpointCorruptError, CheckpointNotFoundError) as error:
        return [Fault(MANIFEST_FILE, " ".join(str(error).splitlines()[:2]))]
    there = _sizes(storage, uuid)
    faults = _compare(storage, manifest, there, manifest.files)
    for name in sorted(set(there) - set(manifest.files) - {MANIFEST_FILE}):
        faults.append(Fault(name, "is not in the manifest", is_stray=True))
    faults.extend(_missing_directories(storage, manifest))
    return sorted(faults, key=lambda fault: fault.name)


def check_in_place(storage: StorageBackend, manifest: Manifest, names: Collection[str]) -> None:
    """Check files of a checkpoint where they are.

    Raises:
        CheckpointCorruptError: If one is missing or has changed; it is named.
    """
    faults = _compare(storage, manifest, _sizes(storage, manifest.uuid), names)
    if faults:
        raise corrupt(storage, manifest.uuid, faults)


def check_copies(
    storage: StorageBackend, manifest: Manifest, digests: Mapping[str, FileDigest]
) -> None:
    """Check what was read of a checkpoint.

    Args:
        storage: Where it was read from.
        manifest: What it should be.
        digests: What was read, by name.

    Raises:
        CheckpointCorruptError: If a file has changed; it is named.
    """
    faults = [
        Fault(name, reason)
        for name, found in digests.items()
        if (reason := _difference(found, manifest.files[name]))
    ]
    if faults:
        raise corrupt(storage, manifest.uuid, faults)


def corrupt(storage: StorageBackend, uuid: str, faults: Sequence[Fault]) -> CheckpointCorruptError:
    """Return the error that tells of faults."""
    more = f" (and {len(faults) - 1} more)" if len(faults) > 1 else ""
    return CheckpointCorruptError(
        f"checkpoint {uuid} in {storage.url} is damaged: {faults[0]}{more}.\n"
        "Every file is compared with the manifest before it is used.\n"
        f"See all faults with: detcore checkpoint verify {uuid}; list others with: "
        "detcore checkpoint list"
    )


def _sizes(storage: StorageBackend, uuid: str) -> dict[str, int]:
    start = len(uuid) + 1
    return {entry.key[start:]: entry.size for entry in storage.list(uuid)}


def _compare(
    storage: StorageBackend, manifest: Manifest, there: Mapping[str, int], names: Collection[str]
) -> list[Fault]:
    """Compare names and sizes, which costs nothing, then the content of what is left."""
    faults = []
    whole = []
    for name in names:
        expected = manifest.files[name].size
        if name not in there:
            faults.append(Fault(name, "is missing"))
        elif there[name] != expected:
            faults.append(Fault(name, f"has {there[name]} bytes instead of {expected}"))
        else:
            whole.append(name)
    digests = storage.digest_tree(
        [f"{manifest.uuid}/{name}" for name in whole], algorithm=manifest.algorithm
    )
    for name in whole:
        reason = _difference(digests[f"{manifest.uuid}/{name}"], manifest.files[name])
        if reason:
            faults.append(Fault(name, reason))
    return faults


def _difference(found: FileDigest, expected: FileDigest) -> str | None:
    if found.size != expected.size:
        return f"has {found.size} bytes instead of {expected.size}"
    if found != expected:
        return f"has changed: its digest is {found.value[:12]}..., not {expected.value[:12]}..."
    return None


def _missing_directories(storage: StorageBackend, manifest: Manifest) -> list[Fault]:
    """Return empty folders that are gone; only a file system has any to lose."""
    faults = []
    for name in manifest.directories:
        path = storage.direct_path(f"{manifest.uuid}/{name}")
        if path is not None and not path.is_dir():
            faults.append(Fault(f"{name}/", "is missing"))
    return faults
