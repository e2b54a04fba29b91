"""Answers: JSON that every reader of JSON takes (ASCII, no NaN, no infinities), and files."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, BinaryIO

from fastapi.responses import JSONResponse, StreamingResponse

from detcore.client.http import encode_answer

_CHUNK_BYTES = 1 << 20
_BYTES = {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}
# Describes `answer_file` in the OpenAPI document.
FILE_CONTENT: dict[int | str, dict[str, Any]] = {
    200: {"content": _BYTES, "description": "The file, from the byte on."}
}


class AsciiJson(JSONResponse):
    """A document of `detcore.client.Transport`, or a list of them.

    Texts of users may hold halves of surrogate pairs, which UTF-8 cannot encode; they are escaped.
    """

    def render(self, content: Any) -> bytes:
        """Return the content as JSON; see `detcore.client.http` for special numbers."""
        return json.dumps(encode_answer(content), allow_nan=False, separators=(",", ":")).encode()


def answer_file(file: BinaryIO, size: int, offset: int) -> StreamingResponse:
    """Return the bytes of an open file from an offset on, and close the file after them."""
    start = min(offset, size)
    file.seek(start)
    return StreamingResponse(
        _pieces(file, size - start),
        media_type="application/octet-stream",
        headers={"Content-Length": str(size - start)},
    )


def _pieces(file: BinaryIO, size: int) -> Iterator[bytes]:
    """Yield at most `size` bytes of a file, which may grow or shrink meanwhile, and close it."""
    with file:
        while size > 0 and (piece := file.read(min(size, _CHUNK_BYTES))):
            size -= len(piece)
            yield piece
