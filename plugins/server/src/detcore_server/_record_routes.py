"""Routes for reports: whole lines of a spool from a byte on, answered once they are committed.

The sender keeps its spool, and the server its position, which moves in the transaction that adds
the records. So whatever is lost, repeated, or sent by two at once, each record arrives once.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterator
from typing import Annotated

import anyio.to_thread
from fastapi import APIRouter, FastAPI, Query, Request, Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from detcore.database import Position, SpoolPart
from detcore.errors import DetcoreError, InvalidArgumentError, NotFoundError, StorageFullError
from detcore.hooks.delivery import SpoolHeader
from detcore_server._auth import Id, State, Worker
from detcore_server._errors import error_body
from detcore_server._writer import RefusedError, Writer

__all__ = ["make_router", "take_in"]

# Written at once.
_PIECE_BYTES = 256 * 1024
_RETRY_AFTER_S = 1
# The first match counts. If the database is unreachable or stalled, the sender, which still has the
# lines, has to retry.
_ANSWERS: tuple[tuple[type[DetcoreError], int, str], ...] = (
    (InvalidArgumentError, 400, "InvalidArgumentError"),
    (NotFoundError, 404, "NotFoundError"),
    (RefusedError, 409, "DatabaseError"),
    (StorageFullError, 507, "StorageFullError"),
    (DetcoreError, 503, "DatabaseError"),
)

_BODY = {
    "requestBody": {
        "required": True,
        "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
    }
}

Offset = Annotated[int, Query(ge=0, le=2**62)]


class SpoolPosition(BaseModel):
    """The part of a spool that is in the database.

    ``offset``: the byte of the file where that part ends; 0: it is empty.
    ``last_seq``: the number of the last record in it.
    """

    offset: int
    last_seq: int


@contextlib.asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[dict[str, Writer]]:
    writer = Writer(app.state.detcore.database)
    try:
        yield {"writer": writer}
    finally:
        await anyio.to_thread.run_sync(writer.close)


def make_router() -> APIRouter:
    """Return the routes of this part."""
    router = APIRouter(
        prefix="/api/detcore/v1/trials/{trial_id}/runs/{run_id}",
        tags=["records"],
        lifespan=_lifespan,
    )

    @router.get("/spool")
    def get_spool_position(state: State, _: Worker, trial_id: Id, run_id: Id) -> SpoolPosition:
        found = state.database.spool_position(trial_id, run_id)
        return SpoolPosition(offset=found.offset, last_seq=found.last_seq)

    @router.post("/spool", response_model=SpoolPosition, openapi_extra=_BODY)
    async def add_to_spool(
        request: Request,
        _: Worker,
        trial_id: Id,
        run_id: Id,
        offset: Offset,
        first: Offset,
    ) -> Response:
        """Add whole lines of a spool, from the byte `offset` of the file on.

        `first` is the byte where its records begin, after its header. If the server knows another
        position than `offset`, it adds nothing and returns that position.
        """
        return await take_in(request, (trial_id, run_id), start=offset, first=first)

    return router


async def take_in(request: Request, owner: tuple[int, int], *, start: int, first: int) -> Response:
    """Add the body of a request; answer once it is committed, or with the reason for a failure."""
    try:
        position = await _add(request, owner, start=start, first=first)
    except (DetcoreError, HTTPException) as error:
        return _failed(request, error)
    return Response(
        b'{"offset":%d,"last_seq":%d}' % (position.offset, position.last_seq),
        media_type="application/json",
    )


async def _add(request: Request, owner: tuple[int, int], *, start: int, first: int) -> Position:
    if start < first:
        raise InvalidArgumentError(
            f"offset={start} is before first={first}, where the records of a spool begin"
        )
    data = await _read_body(request)
    if data and data[-1:] != b"\n":
        raise InvalidArgumentError(
            f"the body of {len(data)} bytes does not end with a newline: whole lines are taken only"
        )
    writer: Writer = request.state.writer
    for piece in _pieces(data):
        part = SpoolPart(header=SpoolHeader(*owner, first), start=start, lines=piece)
        position = await writer.add(part)
        start += len(piece)
        if position.offset != start:
            break
    return position


async def _read_body(request: Request) -> bytes:
    """Return the body; `Request.body` takes three times as long for a small one."""
    parts = []
    is_more = True
    while is_more:
        message = await request.receive()
        if message["type"] != "http.request":
            raise ClientDisconnect
        parts.append(message.get("body", b""))
        is_more = message.get("more_body", False)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _pieces(data: bytes) -> Iterator[bytes]:
    """Cut lines into pieces that do not hold up others for long; at least one."""
    start = 0
    while len(data) - start > _PIECE_BYTES:
        end = data.rfind(b"\n", start, start + _PIECE_BYTES) + 1
        if not end:  # a record may be longer than a piece
            end = data.index(b"\n", start) + 1
        yield data[start:end]
        start = end
    if start < len(data) or not data:
        yield data[start:]


def _failed(request: Request, error: DetcoreError | HTTPException) -> JSONResponse:
    if isinstance(error, HTTPException):  # the body is too large, or comes too slowly
        status, message = error.status_code, str(error.detail)
        kind = "InvalidArgumentError" if status < 500 else "DatabaseError"
    else:
        status, kind = next(found[1:] for found in _ANSWERS if isinstance(error, found[0]))
        message = str(error)
    headers = {"Retry-After": str(_RETRY_AFTER_S)} if status in (503, 507) else {}
    body = error_body(request.url.path, status, kind, message)
    return JSONResponse(body, status_code=status, headers=headers)
