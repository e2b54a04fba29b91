"""Encode and decode the manifest, the description of a committed checkpoint."""

from __future__ import annotations

import dataclasses
import datetime
import hashlib
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from detcore.checkpoint.manifest_fields import (
    ALGORITHM,
    MANIFEST_FILE,
    MAX_MANIFEST_BYTES,
    check_id,
    format_value,
    parse_object,
    read_fields,
)
from detcore.contract.errors import (
    CheckpointCorruptError,
    CheckpointNotFoundError,
    InvalidCheckpointError,
    UnsafePathError,
)

if TYPE_CHECKING:
    from detcore.contract.values import TensorInfo
    from detcore.storage import FileDigest, StorageBackend


METADATA_FILE = "metadata.json"
_FORMAT = "detcore-checkpoint"
_VERSION = 1


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """Description of a committed checkpoint.

    Attributes:
        uuid: The checkpoint.
        steps_completed: Batches completed when it was saved.
        metadata: Metadata that was saved with it; JSON values.
        created: Time of the commit, in UTC.
        files: Size and digest of every file by its name below the checkpoint.
        directories: Empty directories.
        parent: UUID of the trial's previous checkpoint, or None.
        versions: Versions of the distributions that wrote it; ``"detcore"`` is always included.
        tensors: Tensors in its files, if the framework describes them.
    """

    uuid: str
    steps_completed: int
    metadata: Mapping[str, Any]
    created: datetime.datetime
    files: Mapping[str, FileDigest]
    directories: tuple[str, ...] = ()
    parent: str | None = None
    versions: Mapping[str, str] = dataclasses.field(default_factory=dict)
    tensors: tuple[TensorInfo, ...] = ()

    @property
    def size_bytes(self) -> int:
        """Sum of the sizes of its files."""
        return sum(digest.size for digest in self.files.values())

    def resources(self) -> dict[str, int]:
        """Return the size of each file by name; empty directories end in ``/`` and have size 0."""
        sizes = {name: digest.size for name, digest in self.files.items()}
        return sizes | {f"{name}/": 0 for name in self.directories}


def encode_manifest(manifest: Manifest) -> bytes:
    """Return the content of ``manifest.json``.

    ``checksum`` is the SHA-256 of the other fields as compact JSON with sorted keys, so that a
    modified manifest is detected as well. Tensors of files that have been deleted are left
    out.

    Raises:
        InvalidCheckpointError: If the manifest would be too large to be read again.
    """
    fields: dict[str, Any] = {
        "format": _FORMAT,
        "version": _VERSION,
        "uuid": manifest.uuid,
        "created": manifest.created.isoformat(timespec="microseconds"),
        "steps_completed": manifest.steps_completed,
        "parent": manifest.parent,
        "versions": dict(manifest.versions),
        "metadata": manifest.metadata,
        "digest": ALGORITHM,
        "files": {
            name: {"size": digest.size, ALGORITHM: digest.value}
            for name, digest in sorted(manifest.files.items())
        },
        "directories": sorted(manifest.directories),
    }
    tensors = [
        dataclasses.asdict(tensor) for tensor in manifest.tensors if tensor.file in manifest.files
    ]
    if tensors:
        fields["tensors"] = tensors
    data = (json.dumps({**fields, "checksum": _compute_checksum(fields)}, indent=1) + "\n").encode()
    if len(data) > MAX_MANIFEST_BYTES:
        raise InvalidCheckpointError(
            f"the checkpoint's {MANIFEST_FILE} would have {len(data)} bytes; the maximum is "
            f"{MAX_MANIFEST_BYTES}.\n"
            f"It lists {len(manifest.files)} files and {len(tensors)} tensors.\n"
            "Combine them into fewer files, or save less metadata."
        )
    return data


def decode_manifest(data: bytes, uuid: str, url: str) -> Manifest:
    """Read the content of ``manifest.json``.

    Args:
        data: The content.
        uuid: The checkpoint that contains it.
        url: URL of the storage, for messages.

    Raises:
        CheckpointCorruptError: If it is damaged, belongs to another checkpoint, or has a later
            format.
    """
    try:
        fields = parse_object(data)
        if fields.get("format") != _FORMAT:
            raise ValueError(f"its format is {format_value(fields.get('format'))}")
        checksum = fields.pop("checksum", None)
        if checksum is None:
            raise ValueError("its field 'checksum' is missing")
        version = fields.get("version")
        if type(version) is not int or version != _VERSION:
            raise _create_corrupt_error(
                uuid,
                url,
                f"its version is {format_value(version)}, and this release reads {_VERSION}",
                "It was written by another detcore release. Read it with that release.",
            )
        if checksum != _compute_checksum(fields):
            raise ValueError("its checksum does not match its content")
        if fields.get("uuid") != uuid:
            raise ValueError(f"it belongs to checkpoint {format_value(fields.get('uuid'))}")
        return Manifest(uuid=uuid, **read_fields(fields))
    except (ValueError, RecursionError) as error:
        raise _create_corrupt_error(uuid, url, _describe_error(error)) from error


def read_manifest(
    storage: StorageBackend, uuid: str, *, sizes: Mapping[str, int] | None = None
) -> Manifest:
    """Return the manifest of a committed checkpoint.

    Args:
        storage: Storage of the checkpoint.
        uuid: UUID of the checkpoint.
        sizes: Sizes of its stored files by name, if known. The manifest's own size is checked
            before it is read.

    Raises:
        CheckpointNotFoundError: If no such checkpoint is committed.
        CheckpointCorruptError: If the manifest is damaged, or is not a manifest.
    """
    key = f"{check_id(uuid)}/{MANIFEST_FILE}"
    try:
        size = _get_stored_size(storage, key) if sizes is None else sizes.get(MANIFEST_FILE)
        if size is None:
            raise CheckpointNotFoundError(_describe_missing(storage, uuid))
        if size == 0:  # includes special files: opening a pipe would block forever
            raise _create_corrupt_error(uuid, storage.url, "it is empty")
        if size > MAX_MANIFEST_BYTES:
            raise _create_corrupt_error(
                uuid,
                storage.url,
                f"it has {size} bytes; the maximum is {MAX_MANIFEST_BYTES}",
            )
        data = storage.read(key)
    except FileNotFoundError as error:
        raise CheckpointNotFoundError(_describe_missing(storage, uuid)) from error
    except UnsafePathError as error:
        raise _create_corrupt_error(uuid, storage.url, _describe_error(error)) from error
    return decode_manifest(data, uuid, storage.url)


def has_manifest(storage: StorageBackend, uuid: str) -> bool:
    """Whether a checkpoint is committed.

    An empty manifest does not count: on a file system without hard links, an empty file is created
    first and then filled.
    """
    return bool(_get_stored_size(storage, f"{check_id(uuid)}/{MANIFEST_FILE}"))


def list_committed(storage: StorageBackend) -> list[str]:
    """Return the UUIDs of the committed checkpoints in a storage."""
    uuids = []
    for entry in storage.list():
        uuid, _, name = entry.key.partition("/")
        if name == MANIFEST_FILE and entry.size:
            uuids.append(uuid)
    return uuids


def _get_stored_size(storage: StorageBackend, key: str) -> int | None:
    """Return a stored file's size, or None if it does not exist."""
    sizes = {entry.key: entry.size for entry in storage.list(key)}
    return sizes.get(key)


def _compute_checksum(fields: Mapping[str, Any]) -> str:
    text = json.dumps(fields, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def _describe_error(error: Exception) -> str:
    if isinstance(error, json.JSONDecodeError | UnicodeDecodeError):
        return f"it is not JSON ({error})"
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    if isinstance(error, UnsafePathError):
        return str(error).partition("\n")[0].rstrip(".")
    return str(error)


def _create_corrupt_error(
    uuid: str, url: str, reason: str, advice: str | None = None
) -> CheckpointCorruptError:
    return CheckpointCorruptError(
        f"checkpoint {uuid} in {url}: {MANIFEST_FILE} cannot be used: {reason}.\n"
        "Without its manifest, it is unknown whether the checkpoint is complete.\n"
        + (advice or "Choose another checkpoint:  detcore checkpoint list")
    )


def _describe_missing(storage: StorageBackend, uuid: str) -> str:
    leftovers = len(storage.list(uuid))
    if leftovers:
        cause = (
            f"The storage has {leftovers} of its files, but no {MANIFEST_FILE}: saving or deleting "
            "the checkpoint was interrupted."
        )
    else:
        cause = "The storage has no files of it."
    return (
        f"no committed checkpoint {uuid} in {storage.url}.\n{cause}\n"
        "List checkpoints with:  detcore checkpoint list"
    )
