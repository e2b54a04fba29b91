"""Stream a checkpoint as a compressed tar archive, and verify its files."""

from __future__ import annotations

import contextlib
import tarfile
import zlib
from collections.abc import Generator, Iterator

from detcore.checkpoint import MANIFEST_FILE, Manifest, read_manifest
from detcore.errors import CheckpointCorruptError
from detcore.storage import Digester, StorageBackend
from detcore_server.server_state import ServerState

_CHUNK = 1 << 20
# Weights hardly compress, so a higher level only costs time.
_LEVEL = 1
_GZIP = 16 + zlib.MAX_WBITS


def open_archive(state: ServerState, uuid: str, *, prefix: str = "") -> Iterator[bytes]:
    """Yield a checkpoint's archive without loading complete files into memory.

    Errors detected before the stream starts are raised immediately. A changed file ends the stream
    with an error, so that the client does not accept an incomplete archive.

    Args:
        state: The server.
        uuid: The checkpoint.
        prefix: Directory of the files in the archive, with a trailing slash, or "".

    Raises:
        CheckpointStateError: If the checkpoint is incomplete or was deleted.
        CheckpointCorruptError: If files are missing or have a wrong size.
        DetcoreError: If the storage is unreachable.
    """
    with state.transport.open_checkpoint(uuid) as (_, storage):
        manifest = read_manifest(storage, uuid)
        _check_sizes(storage, manifest)
        text = storage.read(f"{uuid}/{MANIFEST_FILE}")
    return _compress(_parts(state, manifest, text, prefix))


def _check_sizes(storage: StorageBackend, manifest: Manifest) -> None:
    prefix = f"{manifest.uuid}/"
    stored = {entry.key[len(prefix) :]: entry.size for entry in storage.list(manifest.uuid)}
    wrong = sorted(
        name for name, digest in manifest.files.items() if stored.get(name) != digest.size
    )
    if wrong:
        raise CheckpointCorruptError(
            f"checkpoint {manifest.uuid} is damaged: {', '.join(wrong[:5])} is missing or has a "
            f"wrong size.\nList all faults with: detcore checkpoint verify {manifest.uuid}"
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
    state: ServerState, manifest: Manifest, text: bytes, prefix: str
) -> Generator[bytes, None, None]:
    """Yield the archive with empty directories, files and finally the manifest."""
    when = int(manifest.created.timestamp())
    for name in manifest.directories:
        yield _header(f"{prefix}{name}/", 0, when, kind=tarfile.DIRTYPE)
    for name, expected in manifest.files.items():
        yield _header(f"{prefix}{name}", expected.size, when)
        digester = Digester()
        file, _ = state.transport.open_file(manifest.uuid, name)
        with file:
            num_left = expected.size
            while num_left:
                data = file.read(min(_CHUNK, num_left))
                if not data:
                    raise _changed(manifest, name)
                num_left -= len(data)
                digester.update(data)
                yield data
        if digester.result() != expected:
            raise _changed(manifest, name)
        yield _padding(expected.size)
    yield _header(f"{prefix}{MANIFEST_FILE}", len(text), when)
    yield text + _padding(len(text))
    yield bytes(2 * tarfile.BLOCKSIZE)


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
        f"{name} of checkpoint {manifest.uuid} does not match the manifest.\n"
        f"List all faults with: detcore checkpoint verify {manifest.uuid}"
    )
