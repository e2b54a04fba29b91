"""The page that the link of ``detcore ui`` opens, and the one for requests without it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from fastapi import APIRouter, Query, Request, Response
from fastapi.concurrency import run_in_threadpool

from detcore_server._auth import State, session_cookie
from detcore_server._page._render import HEADERS, PageRoute, render

if TYPE_CHECKING:
    from detcore_server._visit import Visit


_USED = (
    "This link was used already, or is not that of this start of detcore ui: each opens the page "
    "once.\nPress Ctrl-C in the terminal, and type detcore ui again for a new one."
)
_WITHOUT = (
    "Only the browser that opened the link of detcore ui may see this page.\n"
    "The link is in the terminal. If another browser has used it, press Ctrl-C there and type "
    "detcore ui again."
)


def make_router(visit: Visit) -> APIRouter:
    """Return the routes of this part."""
    router = APIRouter(route_class=PageRoute, include_in_schema=False)

    @router.get("/ui/open")
    def open_page(
        request: Request, state: State, link: Annotated[str, Query(max_length=200)] = ""
    ) -> Response:
        token = visit.open(link)
        if token is None:
            return _refusal(request, _USED)
        # Not a redirect: the cookie would be missing after a link on a page of another site.
        response = render(request, "open.html", None)
        name, is_secure = session_cookie(state)
        # Without an age: the browser forgets it when it ends.
        response.set_cookie(
            name, token, path="/", secure=is_secure, httponly=True, samesite="strict"
        )
        return response

    return router


async def refuse(request: Request, _: Exception) -> Response:
    """Answer a request without the session's cookie."""
    response = await run_in_threadpool(_refusal, request, _WITHOUT)
    response.headers.update(HEADERS)
    return response


def _refusal(request: Request, message: str) -> Response:
    return render(
        request, "error.html", None, status=403, title="Not allowed", message=message
    )  # fmt: skip
