"""Files of checkpoints for browsers: one, or all of them as a tar archive."""

from __future__ import annotations

import tarfile
import urllib.parse
from collections.abc import Iterator
from typing import TYPE_CHECKING

from fastapi.responses import StreamingResponse

from detcore.errors import RunError
from detcore_server._answers import answer_file

if TYPE_CHECKING:
    from fastapi import Response

    from detcore_server._state import ServerState


_BLOCK = 512
_CHUNK_BYTES = 1 << 20


def download_file(state: ServerState, uuid: str, name: str) -> Response:
    """Return a file of a checkpoint, to be saved by a browser and never shown by it.

    Raises:
        CheckpointStateError: If the checkpoint is not complete, or was deleted.
        NotFoundError: If it has no such file.
    """
    file, size = state.transport.open_file(uuid, name)
    response = answer_file(file, size, 0)
    response.headers["Content-Disposition"] = _disposition(name.rpartition("/")[2])
    return response


def download_all(state: ServerState, uuid: str) -> Response:
    """Return all files of a checkpoint, its manifest included, as a tar archive.

    The archive is made while it is sent; its length is known before, so that a browser notices if
    the rest does not come.

    Raises:
        CheckpointStateError: If the checkpoint is not complete, or was deleted.
    """
    listed = state.transport.list_files(uuid)
    parts = [
        (str(each["name"]), int(each["size"]), _head(uuid, str(each["name"]), int(each["size"])))
        for each in listed["files"]
    ]
    length = sum(len(head) + size + _padding(size) for _, size, head in parts) + 2 * _BLOCK
    return StreamingResponse(
        _archive(state, uuid, parts),
        media_type="application/x-tar",
        headers={
            "Content-Length": str(length),
            "Content-Disposition": _disposition(f"{uuid}.tar"),
        },
    )


def _head(uuid: str, name: str, size: int) -> bytes:
    info = tarfile.TarInfo(f"{uuid}/{name}")
    info.size = size
    return info.tobuf(tarfile.PAX_FORMAT)


def _padding(size: int) -> int:
    return -size % _BLOCK


def _archive(state: ServerState, uuid: str, parts: list[tuple[str, int, bytes]]) -> Iterator[bytes]:
    for name, size, head in parts:
        yield head
        file, _ = state.transport.open_file(uuid, name)
        left = size
        with file:
            while left and (piece := file.read(min(left, _CHUNK_BYTES))):
                left -= len(piece)
                yield piece
        if left:
            raise RunError(f"{name} of checkpoint {uuid} lost its last {left} bytes")
        yield bytes(_padding(size))
    yield bytes(2 * _BLOCK)


def _disposition(name: str) -> str:
    """Return the header that has a browser save a file; names may hold anything."""
    return f"attachment; filename*=UTF-8''{urllib.parse.quote(name, safe='', errors='replace')}"
