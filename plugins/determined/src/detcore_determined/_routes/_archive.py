"""A checkpoint as one stream: a tar archive, compressed or not, whose parts are checked."""

from __future__ import annotations

import contextlib
import tarfile
import tempfile
import zlib
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import BinaryIO

from detcore.checkpoint import MANIFEST_FILE, Manifest, read_manifest
from detcore.database import CheckpointRecord
from detcore.errors import CheckpointCorruptError, CheckpointStateError
from detcore.storage import Digester, StorageBackend, open_recorded
from detcore_server.routes import ServerState

_READABLE = ("COMPLETED", "PARTIALLY_DELETED")
_CHUNK = 1 << 20
# Weights hardly compress, and a higher level costs time without making them smaller.
_LEVEL = 1
_GZIP = 16 + zlib.MAX_WBITS


def open_archive(
    state: ServerState, record: CheckpointRecord, *, is_compressed: bool
) -> Iterator[bytes]:
    """Return the bytes of a checkpoint's archive; no file is read into memory as a whole.

    Errors that can be detected before the stream are raised at once. A file that turns out to have
    changed ends the stream with an error, so that the client does not take it for a whole one.

    Args:
        state: The server.
        record: The checkpoint.
        is_compressed: Whether to compress it by gzip.

    Raises:
        CheckpointStateError: If it is not complete, or was deleted.
        CheckpointCorruptError: If files are missing or have another size.
        DetcoreError: If its storage cannot be reached.
    """
    if record.state not in _READABLE:
        raise CheckpointStateError(
            f"checkpoint {record.uuid} is {record.state}: only one that is COMPLETED or "
            "PARTIALLY_DELETED can be downloaded."
        )
    settings = state.settings
    storage = open_recorded(
        record,
        database=state.database,
        home=settings.environment.home,
        plugins=settings.plugins,
    )
    with contextlib.ExitStack() as stack:
        stack.callback(storage.close)
        manifest = read_manifest(storage, record.uuid)
        _check_sizes(storage, manifest)
        text = storage.read(f"{record.uuid}/{MANIFEST_FILE}")
        stack.pop_all()
    parts = _parts(storage, manifest, text, settings.environment.home)
    return _compress(parts) if is_compressed else parts


def _check_sizes(storage: StorageBackend, manifest: Manifest) -> None:
    prefix = f"{manifest.uuid}/"
    stored = {entry.key[len(prefix) :]: entry.size for entry in storage.list(manifest.uuid)}
    wrong = sorted(
        name for name, digest in manifest.files.items() if stored.get(name) != digest.size
    )
    if wrong:
        raise CheckpointCorruptError(
            f"checkpoint {manifest.uuid} is not whole: {', '.join(wrong[:5])} is missing, or has "
            "another size than its manifest says.\nSee detcore checkpoint verify"
        )


def _compress(parts: Generator[bytes, None, None]) -> Generator[bytes, None, None]:
    packer = zlib.compressobj(_LEVEL, zlib.DEFLATED, _GZIP)
    with contextlib.closing(parts):
        for part in parts:
            packed = packer.compress(part)
            if packed:
                yield packed
    yield packer.flush()


def _parts(
    storage: StorageBackend, manifest: Manifest, text: bytes, home: Path
) -> Generator[bytes, None, None]:
    """Yield the archive: empty folders, files, the manifest last."""
    when = int(manifest.created.timestamp())
    with contextlib.closing(storage):
        for name in manifest.directories:
            yield _header(f"{name}/", 0, when, kind=tarfile.DIRTYPE)
        for name, expected in manifest.files.items():
            yield _header(name, expected.size, when)
            digester = Digester()
            with _opened(storage, manifest, name, home) as file:
                left = expected.size
                while left:
                    data = file.read(min(_CHUNK, left))
                    if not data:
                        raise _changed(manifest, name)
                    left -= len(data)
                    digester.update(data)
                    yield data
            if digester.result() != expected:
                raise _changed(manifest, name)
            yield _padding(expected.size)
        yield _header(MANIFEST_FILE, len(text), when)
        yield text + _padding(len(text))
        yield bytes(2 * tarfile.BLOCKSIZE)


@contextlib.contextmanager
def _opened(
    storage: StorageBackend, manifest: Manifest, name: str, home: Path
) -> Iterator[BinaryIO]:
    """Open a file of a checkpoint in place, or, in a remote storage, a temporary copy."""
    key = f"{manifest.uuid}/{name}"
    path = storage.direct_path(key)
    if path is not None:
        with path.open("rb") as file:
            yield file
        return
    with tempfile.TemporaryDirectory(prefix="download-", dir=home) as folder:
        copy = Path(folder) / "file"
        storage.get_tree([(copy, key)])
        with copy.open("rb") as file:
            yield file


def _header(name: str, size: int, when: int, *, kind: bytes = tarfile.REGTYPE) -> bytes:
    info = tarfile.TarInfo(name)
    info.type = kind
    info.size = size
    info.mtime = when
    info.mode = 0o755 if kind == tarfile.DIRTYPE else 0o644
    return info.tobuf(tarfile.PAX_FORMAT)


def _padding(size: int) -> bytes:
    return bytes(-size % tarfile.BLOCKSIZE)


def _changed(manifest: Manifest, name: str) -> CheckpointCorruptError:
    return CheckpointCorruptError(
        f"{name} of checkpoint {manifest.uuid} is not what its manifest says.\n"
        "See detcore checkpoint verify"
    )
