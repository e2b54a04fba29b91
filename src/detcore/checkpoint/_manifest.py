"""The manifest: what a committed checkpoint consists of."""

from __future__ import annotations

import dataclasses
import datetime
import hashlib
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from detcore.checkpoint._ids import check_id
from detcore.errors import CheckpointCorruptError, CheckpointNotFoundError, UnsafePathError
from detcore.types import TensorInfo

if TYPE_CHECKING:
    from detcore.storage import FileDigest, StorageBackend

__all__ = [
    "MANIFEST_FILE",
    "METADATA_FILE",
    "Manifest",
    "decode_manifest",
    "encode_manifest",
    "has_manifest",
    "list_committed",
    "read_manifest",
]

MANIFEST_FILE = "manifest.json"
METADATA_FILE = "metadata.json"
_FORMAT = "detcore-checkpoint"
_VERSION = 1
_ALGORITHMS = ("xxh3_128", "sha256")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """What a committed checkpoint consists of.

    Attributes:
        uuid: The checkpoint.
        steps_completed: Batches completed when it was made.
        metadata: What was saved with it; JSON values.
        created: When it was committed, in UTC.
        files: Size and digest of every file by its name below the checkpoint.
        directories: Folders with nothing in them.
        parent: UUID of the checkpoint that the trial saved before, or None.
        versions: Versions of what wrote it, by distribution; ``"detcore"`` is always there.
        tensors: What its files hold, where the framework tells.
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
    def algorithm(self) -> str:
        """How its files are digested; all of them alike."""
        algorithms = sorted({digest.algorithm for digest in self.files.values()})
        if len(algorithms) > 1:
            raise ValueError(f"checkpoint {self.uuid} mixes the digests {', '.join(algorithms)}")
        return algorithms[0] if algorithms else _ALGORITHMS[0]

    @property
    def size_bytes(self) -> int:
        """Sum of the sizes of its files."""
        return sum(digest.size for digest in self.files.values())

    def resources(self) -> dict[str, int]:
        """Return the size of each file by name; empty folders end in ``/`` and have size 0."""
        sizes = {name: digest.size for name, digest in self.files.items()}
        return sizes | {f"{name}/": 0 for name in self.directories}


def encode_manifest(manifest: Manifest) -> bytes:
    """Return the content of ``manifest.json``.

    ``checksum`` is the SHA-256 of the other fields as compact JSON with sorted keys, so that a
    change of the manifest itself is noticed too.
    """
    fields = {
        "format": _FORMAT,
        "version": _VERSION,
        "uuid": manifest.uuid,
        "created": manifest.created.isoformat(timespec="microseconds"),
        "steps_completed": manifest.steps_completed,
        "parent": manifest.parent,
        "versions": dict(manifest.versions),
        "metadata": manifest.metadata,
        "digest": manifest.algorithm,
        "files": {
            name: {"size": digest.size, digest.algorithm: digest.value}
            for name, digest in sorted(manifest.files.items())
        },
        "directories": sorted(manifest.directories),
    }
    if manifest.tensors:
        fields["tensors"] = [dataclasses.asdict(tensor) for tensor in manifest.tensors]
    return (json.dumps({**fields, "checksum": _checksum(fields)}, indent=1) + "\n").encode()


def decode_manifest(data: bytes, uuid: str, url: str) -> Manifest:
    """Read the content of ``manifest.json``.

    Args:
        data: The content.
        uuid: The checkpoint it was found in.
        url: Where that is, for messages.

    Raises:
        CheckpointCorruptError: If it is damaged, of another checkpoint, or of a later format.
    """
    try:
        fields = json.loads(data)
        if fields["format"] != _FORMAT:
            raise ValueError(f"its format is {fields['format']!r}")
        checksum = fields.pop("checksum")
        if fields["version"] != _VERSION:
            raise _corrupt(
                uuid,
                url,
                f"its version is {fields['version']!r}, and this release reads {_VERSION}",
                "It was written by another release of detcore; use that one to read it.",
            )
        if checksum != _checksum(fields):
            raise ValueError("its checksum does not match its content")
        manifest = _from_fields(fields)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise _corrupt(uuid, url, _reason(error)) from error
    if manifest.uuid != uuid:
        raise _corrupt(uuid, url, f"it belongs to checkpoint {manifest.uuid}")
    return manifest


def read_manifest(storage: StorageBackend, uuid: str) -> Manifest:
    """Return the manifest of a committed checkpoint.

    Raises:
        CheckpointNotFoundError: If there is no committed checkpoint of that name.
        CheckpointCorruptError: If the manifest is damaged.
    """
    check_id(uuid)
    try:
        data = storage.read(f"{uuid}/{MANIFEST_FILE}")
    except FileNotFoundError as error:
        raise CheckpointNotFoundError(_not_found(storage, uuid)) from error
    return decode_manifest(data, uuid, storage.url)


def has_manifest(storage: StorageBackend, uuid: str) -> bool:
    """Whether a checkpoint is committed.

    An empty manifest does not count: on a file system without hard links, taking its name and
    filling it are two steps.
    """
    try:
        return bool(storage.read(f"{check_id(uuid)}/{MANIFEST_FILE}"))
    except FileNotFoundError:
        return False


def list_committed(storage: StorageBackend) -> list[str]:
    """Return the UUIDs of the committed checkpoints in a storage."""
    found = []
    for entry in storage.list():
        uuid, _, name = entry.key.partition("/")
        if name == MANIFEST_FILE and entry.size:
            found.append(uuid)
    return found


def _from_fields(fields: Mapping[str, Any]) -> Manifest:
    from detcore.storage import FileDigest, check_key

    algorithm = fields["digest"]
    if algorithm not in _ALGORITHMS:
        raise ValueError(
            f"its files are digested with {algorithm!r}; this release knows "
            f"{' and '.join(_ALGORITHMS)}"
        )
    for name in (*fields["files"], *fields["directories"]):
        check_key(name)
    return Manifest(
        uuid=fields["uuid"],
        steps_completed=fields["steps_completed"],
        metadata=fields["metadata"],
        created=datetime.datetime.fromisoformat(fields["created"]),
        files={
            name: FileDigest(entry["size"], entry[algorithm], algorithm)
            for name, entry in fields["files"].items()
        },
        directories=tuple(fields["directories"]),
        parent=fields["parent"],
        versions=fields["versions"],
        tensors=tuple(
            TensorInfo(each["name"], tuple(each["shape"]), each["dtype"], each["file"])
            for each in fields.get("tensors", ())
        ),
    )


def _checksum(fields: Mapping[str, Any]) -> str:
    text = json.dumps(fields, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def _reason(error: Exception) -> str:
    if isinstance(error, KeyError):
        return f"its field {error.args[0]!r} is missing"
    if isinstance(error, json.JSONDecodeError | UnicodeDecodeError):
        return f"it is not JSON ({error})"
    if isinstance(error, UnsafePathError):
        return str(error).partition("\n")[0]
    return str(error)


def _corrupt(uuid: str, url: str, reason: str, advice: str | None = None) -> CheckpointCorruptError:
    return CheckpointCorruptError(
        f"checkpoint {uuid} in {url}: {MANIFEST_FILE} cannot be used: {reason}.\n"
        "Without its manifest nobody can tell whether the checkpoint is whole.\n"
        + (advice or "Use another checkpoint: detcore checkpoint list")
    )


def _not_found(storage: StorageBackend, uuid: str) -> str:
    leftovers = len(storage.list(uuid))
    if leftovers:
        why = (
            f"{leftovers} files are there without a {MANIFEST_FILE}: saving it, or deleting it, "
            "was interrupted."
        )
    else:
        why = f"A checkpoint counts once its {MANIFEST_FILE} is written; there is nothing there."
    return (
        f"no committed checkpoint {uuid} in {storage.url}.\n{why}\n"
        "List those there are with: detcore checkpoint list"
    )
