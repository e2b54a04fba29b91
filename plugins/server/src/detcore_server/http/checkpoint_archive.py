"""A checkpoint as one stream: a compressed tar archive, whose parts are checked."""

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
# Weights hardly compress, and a higher level costs time without making them smaller.
_LEVEL = 1
_GZIP = 16 + zlib.MAX_WBITS


def open_archive(state: ServerState, uuid: str, *, prefix: str = "") -> Iterator[bytes]:
    """Return the bytes of a checkpoint's archive; no file is read into memory as a whole.

    Errors that can be detected before the stream are raised at once. A file that turns out to have
    changed ends the stream with an error, so that the client does not take it for a whole one.

    Args:
        state: The server.
        uuid: The checkpoint.
        prefix: Folder of the files in the archive, with a slash at its end; "": none.

    Raises:
        CheckpointStateError: If it is not complete, or was deleted.
        CheckpointCorruptError: If files are missing or have another size.
        DetcoreError: If its storage cannot be reached.
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
    state: ServerState, manifest: Manifest, text: bytes, prefix: str
) -> Generator[bytes, None, None]:
    """Yield the archive: empty folders, files, the manifest last."""
    when = int(manifest.created.timestamp())
    for name in manifest.directories:
        yield _header(f"{prefix}{name}/", 0, when, kind=tarfile.DIRTYPE)
    for name, expected in manifest.files.items():
        yield _header(f"{prefix}{name}", expected.size, when)
        digester = Digester()
        file, _ = state.transport.open_file(manifest.uuid, name)
        with file:
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
        f"{name} of checkpoint {manifest.uuid} is not what its manifest says.\n"
        "See detcore checkpoint verify"
    )
