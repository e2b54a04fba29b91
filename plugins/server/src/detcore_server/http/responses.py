"""Responses: portable JSON (ASCII, without NaN and infinities) and files."""

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
    200: {"content": _BYTES, "description": "The file from the offset."}
}


class AsciiJson(JSONResponse):
    """Response with a document, or a list of documents, of `detcore.client.Transport`.

    User strings may contain lone surrogates, which UTF-8 cannot encode and which are escaped.
    """

    def render(self, content: Any) -> bytes:
        """Encode the content as JSON. See `detcore.client.http` for special numbers."""
        return json.dumps(encode_answer(content), allow_nan=False, separators=(",", ":")).encode()


def answer_file(file: BinaryIO, size: int, offset: int) -> StreamingResponse:
    """Stream an open file from an offset, then close the file."""
    start = min(offset, size)
    file.seek(start)
    return StreamingResponse(
        _read_pieces(file, size - start),
        media_type="application/octet-stream",
        headers={"Content-Length": str(size - start)},
    )


def _read_pieces(file: BinaryIO, size: int) -> Iterator[bytes]:
    """Yield at most `size` bytes of a file that may change, then close the file."""
    with file:
        while size > 0 and (piece := file.read(min(size, _CHUNK_BYTES))):
            size -= len(piece)
            yield piece
