"""Responses in the form of the earlier system.

`detcore_server.routes.error_body` converts error responses to that form, by path.
"""

from __future__ import annotations

import datetime
import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, TypeVar

from fastapi import APIRouter, Depends, HTTPException, Query, Response
from pydantic import AfterValidator, BaseModel, Field

from detcore_server.routes import MAX_DEPTH, ErrorAnswer, is_too_deep

Document = dict[str, Any]
Entry = TypeVar("Entry")
# One JSON value per line.
STREAM_TYPE = "application/x-ndjson"
_MAX_INT = 2**31 - 1


def _check_text(text: str) -> str:
    if "\0" in text or any("\ud800" <= letter <= "\udfff" for letter in text):
        # Not a ValueError, which would return 422: the OpenAPI document cannot express this rule.
        raise refuse(400, "a string must consist of Unicode characters other than NUL")
    return text


def _check_depth(document: Document) -> Document:
    if is_too_deep(document):
        raise refuse(400, f"metadata is nested at most {MAX_DEPTH} times")
    return document


Text = Annotated[str, AfterValidator(_check_text)]
Nested = Annotated[Document, AfterValidator(_check_depth)]
# Lists in a request's first line, which must not become too long.
Texts = Annotated[list[Text], Field(max_length=100)]
Numbers = Annotated[list[Annotated[int, Field(ge=-1, le=_MAX_INT)]], Field(max_length=300)]
_Limit = Annotated[int, Query(ge=-2, le=_MAX_INT, description="0 or -1: all; -2: none")]
_Offset = Annotated[int, Query(ge=-_MAX_INT, le=_MAX_INT, description="below 0: from the end")]


class ListPart(BaseModel):
    """The requested part of a list."""

    limit: _Limit = 0
    offset: _Offset = 0


async def _read_part(limit: _Limit = 0, offset: _Offset = 0) -> ListPart:
    return ListPart(limit=limit, offset=offset)


Part = Annotated[ListPart, Depends(_read_part)]


def new_router() -> APIRouter:
    """Return a router for routes of this part."""
    return APIRouter(
        tags=["determined"],
        responses={"4XX": {"model": ErrorAnswer}, "5XX": {"model": ErrorAnswer}},
        # The earlier system's client sends JSON without a content type.
        strict_content_type=False,
    )


def lines_answer() -> dict[int | str, dict[str, Any]]:
    """Return the OpenAPI description of a stream of results, one per line."""
    kind = {STREAM_TYPE: {"schema": {"type": "string"}}}
    return {200: {"content": kind, "description": "Results, each as JSON on a separate line."}}


def refuse(status: int, message: str) -> HTTPException:
    """Return the exception that refuses a request."""
    return HTTPException(status, message)


def answer(document: Document) -> Response:
    """Return a response, with numbers that JSON lacks as strings."""
    return Response(_encode(document), media_type="application/json")


def line(document: Document) -> bytes:
    """Return a line of a stream of results."""
    return f'{{"result":{_encode(document)}}}\n'.encode()


def moment(time: datetime.datetime | float | None) -> str | None:
    """Return a time in the format of RFC 3339, in UTC."""
    if time is None:
        return None
    if isinstance(time, float | int):
        time = datetime.datetime.fromtimestamp(time, datetime.timezone.utc)
    text = time.astimezone(datetime.timezone.utc).isoformat(timespec="microseconds")
    return text.replace("+00:00", "Z")


def answer_page(
    name: str,
    entries: Sequence[Entry],
    describe: Callable[[Sequence[Entry]], list[Document]],
    part: ListPart,
    **more: object,
) -> Response:
    """Return the requested part of a list, and its position in the list.

    Args:
        name: Name of the list in the response.
        entries: The whole list.
        describe: Returns the documents of the part.
        part: The part, as the client requests it.
        **more: Other parts of the response.
    """
    total, limit, offset = len(entries), part.limit, part.offset
    start = min(offset, total) if offset >= 0 else max(0, total + offset)
    end = min(total, start + limit) if limit > 0 else start if limit == -2 else total
    position = {
        "offset": offset,
        "limit": limit,
        "startIndex": start,
        "endIndex": end,
        "total": total,
    }
    return answer({**more, name: describe(entries[start:end]), "pagination": position})


def as_float(value: object) -> float | None:
    """Return a metric as float; None for other types, and integers beyond all floats."""
    if not isinstance(value, int | float):
        return None
    try:
        return float(value)
    except OverflowError:
        return None


def spelled(value: object) -> Any:
    """Return a value with numbers that JSON lacks as strings, as in the earlier system."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")
    if isinstance(value, Mapping):
        return {str(key): spelled(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [spelled(item) for item in value]
    return value


def _encode(document: Document) -> str:
    return json.dumps(spelled(document), separators=(",", ":"))
