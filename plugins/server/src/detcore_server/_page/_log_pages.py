"""The log of a trial, with search and levels."""

from __future__ import annotations

import urllib.parse
from typing import Annotated, Literal

from fastapi import APIRouter, Query, Request, Response

from detcore_server._auth import Id, PageUser, State
from detcore_server._page._render import PageRoute, render
from detcore_server._page._trial_log import read_back

_Level = Literal["", "info", "warning", "error"]


def make_router() -> APIRouter:
    """Return the routes of this part."""
    router = APIRouter(route_class=PageRoute, include_in_schema=False)

    @router.get("/ui/trials/{trial_id}/log")
    def show_log(
        request: Request,
        state: State,
        user: PageUser,
        trial_id: Id,
        find: Annotated[str, Query(max_length=500)] = "",
        level: _Level = "",
        before: Annotated[int | None, Query(ge=0, le=2**62)] = None,
    ) -> Response:
        record = state.database.get_trial(trial_id)
        lines, start = read_back(record, before=before, find=find, level=level)
        asked = {"find": find, "level": level}
        return render(
            request, "log.html", user,
            record=record, lines=lines, start=start, before=before, asked=asked,
            query=urllib.parse.urlencode({key: text for key, text in asked.items() if text}),
            experiment=state.database.get_experiment(record.experiment_id),
            is_live=before is None and record.state.value == "RUNNING",
        )  # fmt: skip

    return router
