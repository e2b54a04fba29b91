"""Commit checkpoints, from a scratch folder: files first, the manifest last."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from detcore._log import events
from detcore.checkpoint._manifest import (
    MANIFEST_FILE,
    METADATA_FILE,
    Manifest,
    decode_manifest,
    encode_manifest,
    read_manifest,
)
from detcore.checkpoint._verify import stored_sizes
from detcore.contract.errors import CheckpointConflictError, CheckpointCorruptError
from detcore.storage import scratch_folder, watched

if TYPE_CHECKING:
    from detcore.checkpoint._scan import Scan
    from detcore.hooks import CheckpointSaved
    from detcore.storage import FileDigest, StorageBackend, TransferObserver

__all__ = [
    "CheckpointRecords",
    "add_metadata",
    "commit",
    "describe_checkpoint",
    "make_folders",
    "record_committed",
    "staging_folder",
    "write_files",
]


class CheckpointRecords(Protocol):
    """Takes in the changes of checkpoints: a trial's log, or a `detcore.database.Database`."""

    def record_checkpoint(
        self, change: events.CheckpointEvent, *, trial_id: int | None = None, force: bool = False
    ) -> None:
        """Record a change of a checkpoint's state.

        Args:
            change: The change, and with it the state that follows.
            trial_id: The trial of a checkpoint that is started; a trial's log knows it.
            force: Whether files of one in the model registry may be deleted.
        """


def write_files(
    storage: StorageBackend,
    uuid: str,
    scan: Scan,
    *,
    is_in_place: bool = False,
    observer: TransferObserver | None = None,
) -> dict[str, FileDigest]:
    """Copy files to a checkpoint that is not committed yet; flush to the disk those in place."""
    digests: dict[str, FileDigest] = {}
    if scan.files:
        # Sizes are read only if there is an observer.
        total = scan.size_bytes() if observer else 0
        with watched(observer, f"saving {uuid[:8]}", total) as progress:
            if is_in_place:
                keys = [f"{uuid}/{name}" for name in scan.files]
                digests = storage.digest_tree(keys, make_durable=True, progress=progress)
            else:
                pairs = [(path, f"{uuid}/{name}") for name, path in scan.files.items()]
                digests = storage.put_tree(pairs, progress=progress)
    if not is_in_place:
        make_folders(storage, uuid, scan.directories)
    return _named(uuid, digests)


def make_folders(storage: StorageBackend, uuid: str, names: Iterable[str]) -> None:
    """Create empty folders on storages that support them; the manifest lists them in any case."""
    for name in names:
        path = storage.direct_path(f"{uuid}/{name}")
        if path is not None:
            path.mkdir(parents=True, exist_ok=True)


def add_metadata(
    storage: StorageBackend, uuid: str, metadata: Mapping[str, Any]
) -> dict[str, FileDigest]:
    """Write ``metadata.json`` for a checkpoint without a file of that name."""
    key = f"{uuid}/{METADATA_FILE}"
    storage.replace(key, (json.dumps(metadata, indent=2) + "\n").encode())
    return _named(uuid, storage.digest_tree([key]))


def commit(storage: StorageBackend, manifest: Manifest) -> None:
    """Make a checkpoint exist.

    Raises:
        CheckpointCorruptError: If the storage does not hold the files that were written.
        CheckpointConflictError: If another checkpoint was committed under the same UUID.
    """
    _check_arrived(storage, manifest)
    key = f"{manifest.uuid}/{MANIFEST_FILE}"
    try:
        storage.create(key, encode_manifest(manifest))
    except FileExistsError as error:
        # Either an earlier attempt succeeded and its response was lost, or a second writer exists.
        there = decode_manifest(storage.read(key), manifest.uuid, storage.url)
        if there.files != manifest.files:
            raise CheckpointConflictError(
                f"another process committed checkpoint {manifest.uuid} in {storage.url} with "
                "other files.\nTwo processes must not save under one UUID."
            ) from error


def record_committed(records: CheckpointRecords, manifest: Manifest, **told: Any) -> None:
    """Record that a checkpoint is complete; idempotent.

    Args:
        records: Records of the checkpoint.
        manifest: Its manifest.
        **told: For observers too: the fields of `events.CheckpointCommitted` from ``url`` on.
    """
    records.record_checkpoint(
        events.CheckpointCommitted(
            uuid=manifest.uuid,
            steps_completed=manifest.steps_completed,
            metadata=manifest.metadata,
            resources=manifest.resources(),
            **told,
        )
    )


def describe_checkpoint(storage: StorageBackend, uuid: str) -> CheckpointSaved:
    """Return the description of a committed checkpoint for observers, from its manifest.

    Raises:
        CheckpointNotFoundError: If there is no such checkpoint.
    """
    from detcore.hooks import CheckpointSaved

    manifest = read_manifest(storage, uuid)
    return CheckpointSaved(
        uuid=uuid,
        steps_completed=manifest.steps_completed,
        url=f"{storage.url}/{uuid}",
        size_bytes=manifest.size_bytes,
        path=storage.direct_path(uuid),
    )


def _check_arrived(storage: StorageBackend, manifest: Manifest) -> None:
    """Compare the storage's listing with the written files before the checkpoint counts."""
    there = stored_sizes(storage, manifest.uuid)
    for name, digest in manifest.files.items():
        if there.get(name) != digest.size:
            found = "is not there" if name not in there else f"has {there[name]} bytes"
            raise CheckpointCorruptError(
                f"checkpoint {manifest.uuid} was not committed: {name} {found} in {storage.url}, "
                f"although {digest.size} bytes were written.\n"
                "Something changed the files while they were saved."
            )


def _named(uuid: str, digests: Mapping[str, FileDigest]) -> dict[str, FileDigest]:
    return {key[len(uuid) + 1 :]: digest for key, digest in digests.items()}


@contextlib.contextmanager
def staging_folder(storage: StorageBackend, key: str) -> Iterator[tuple[Path, bool]]:
    """Yield a new folder, and whether it is on the storage's own file system.

    If so, it is the path of the key, and stays; otherwise it is removed after the block.
    """
    direct = storage.direct_path(key)
    if direct is not None:
        direct.mkdir(parents=True)
        yield direct, True
        return
    with scratch_folder() as temporary:
        yield temporary, False
