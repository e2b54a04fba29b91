"""Logs of trials as streams of results, one per line, optionally followed."""

from __future__ import annotations

import asyncio
import collections
import re
from collections.abc import AsyncIterator
from typing import Annotated, Any

import anyio.to_thread
from fastapi import Query, Response
from fastapi.responses import StreamingResponse
from pydantic import AwareDatetime, BaseModel, BeforeValidator, Field

from detcore_determined.routes import enums
from detcore_determined.routes.response_models import (
    STREAM_TYPE,
    Document,
    Numbers,
    Text,
    Texts,
    line,
    lines_answer,
    moment,
    new_router,
    refuse,
)
from detcore_server import Requester
from detcore_server.routes import Id, ServerState, State

_POLL_INTERVAL_S = 0.3
_PAGE = 2000
_MAX_TAIL = 100_000
# Stream of the runner's lines in a trial's log; all other lines come from the trial's task.
_RUNNER = "detcore"
_TASK = re.compile(r"trial-(\d{1,9})")


def _check_moment(text: str) -> str:
    if not re.match(r"\d{4}-", text):  # pydantic also reads numbers of seconds
        raise ValueError("a time must have the format 2026-01-31T12:00:00Z")
    return text


_Moment = Annotated[AwareDatetime, BeforeValidator(_check_moment)]


class Filters(BaseModel):
    """Filter of log lines."""

    limit: int = Field(0, ge=0, le=2**31 - 1, description="0: no limit")
    follow: bool = False
    order_by: enums.Order = Field(enums.Order.UNSPECIFIED, alias="orderBy")
    levels: list[enums.LogLevel] = Field([], max_length=100)
    rank_ids: Numbers = Field([], alias="rankIds")
    stdtypes: Texts = []
    sources: Texts = []
    agent_ids: Texts = Field([], alias="agentIds")
    container_ids: Texts = Field([], alias="containerIds")
    allocation_ids: Texts = Field([], alias="allocationIds")
    search_text: Text = Field("", alias="searchText")
    before: _Moment | None = Field(None, alias="timestampBefore")
    after: _Moment | None = Field(None, alias="timestampAfter")

    def has(self, found: Document) -> bool:
        """Whether a line matches."""
        is_runner = found["stream"] == _RUNNER
        return (
            (not self.levels or enums.LogLevel.INFO in self.levels)
            and (not self.rank_ids or (found["rank"] in self.rank_ids and not is_runner))
            and (not self.stdtypes or found["stream"] in self.stdtypes)
            and (not self.sources or _source(found) in self.sources)
            and not (self.agent_ids or self.container_ids or self.allocation_ids)
            and self.search_text in found["text"]
            and (self.before is None or found["at"] < self.before.timestamp())
            and (self.after is None or found["at"] > self.after.timestamp())
        )


router = new_router()


@router.get(
    "/api/v1/trials/{trial_id}/logs",
    response_class=StreamingResponse,
    responses=lines_answer(),
)
def stream_trial_log(
    state: State, _: Requester, trial_id: Id, filters: Annotated[Filters, Query()]
) -> Response:
    """Stream lines that the workers of a trial printed."""
    return _stream(state, trial_id, filters)


@router.get(
    "/api/v1/tasks/{task_id}/logs",
    response_class=StreamingResponse,
    responses=lines_answer(),
)
def stream_task_log(
    state: State, _: Requester, task_id: str, filters: Annotated[Filters, Query()]
) -> Response:
    """Stream lines of the task of a trial, ``trial-N``."""
    match = _TASK.fullmatch(task_id)
    if match is None:
        raise refuse(404, f"no task {task_id!r}: detcore has only tasks of trials, such as trial-7")
    return _stream(state, int(match[1]), filters)


def _stream(state: ServerState, trial_id: int, filters: Filters) -> Response:
    state.database.get_trial(trial_id)  # errors are reported before the stream starts
    is_tail = filters.order_by is enums.Order.DESC
    lines = (
        _stream_last_lines(state, trial_id, filters)
        if is_tail
        else _stream_lines(state, trial_id, filters)
    )
    return StreamingResponse(lines, media_type=STREAM_TYPE)


async def _stream_last_lines(
    state: ServerState, trial_id: int, filters: Filters
) -> AsyncIterator[bytes]:
    """Yield the current last lines, the last line first."""
    tail: collections.deque[bytes] = collections.deque(maxlen=filters.limit or _MAX_TAIL)
    async for page in _read_pages(state, trial_id, follow=False):
        tail.extend(_line(trial_id, number, one) for number, one in page if filters.has(one))
    while tail:
        yield b"".join(tail.pop() for _ in range(min(_PAGE, len(tail))))


async def _stream_lines(
    state: ServerState, trial_id: int, filters: Filters
) -> AsyncIterator[bytes]:
    """Yield lines, the first line first."""
    limit = filters.limit
    remaining = limit
    async for page in _read_pages(state, trial_id, follow=filters.follow):
        lines = [_line(trial_id, number, one) for number, one in page if filters.has(one)]
        if limit:
            lines = lines[:remaining]
            remaining -= len(lines)
        if lines:
            yield b"".join(lines)
        if limit and not remaining:
            return


async def _read_pages(
    state: ServerState, trial_id: int, *, follow: bool
) -> AsyncIterator[list[tuple[int, Document]]]:
    """Yield the lines of a trial with their numbers; with `follow`, wait for more."""
    position = 0
    number = 0
    while True:
        page: Document = await anyio.to_thread.run_sync(_read_page, state, trial_id, position)
        position = page["position"]
        lines: list[Any] = page["lines"]
        if lines:
            yield list(enumerate(lines, number + 1))
            number += len(lines)
            continue
        if not follow or page["is_over"] or state.ending.is_set():
            return
        await asyncio.sleep(_POLL_INTERVAL_S)


def _read_page(state: ServerState, trial_id: int, position: int) -> Document:
    return state.transport.read_log(trial_id, position=position, limit=_PAGE)


def _source(found: Document) -> str:
    return "master" if found["stream"] == _RUNNER else "task"


def _line(trial_id: int, number: int, found: Document) -> bytes:
    at = moment(found["at"])
    is_runner = found["stream"] == _RUNNER
    who = "" if is_runner else f"[rank={found['rank']}] "
    document = {
        "id": str(number),
        "trialId": trial_id,
        "taskId": f"trial-{trial_id}",
        "timestamp": at,
        "level": enums.LogLevel.INFO.value,
        "message": f"[{at}] {who}{found['text']}\n",
        "log": found["text"],
        "source": _source(found),
    }
    if not is_runner:
        document |= {"rankId": found["rank"], "stdtype": found["stream"]}
    return line(document)
