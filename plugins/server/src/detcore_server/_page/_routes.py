"""All routes of the page."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastapi import APIRouter, Request, Response
from fastapi.responses import RedirectResponse

from detcore.errors import NotFoundError
from detcore_report import cut
from detcore_server._auth import PageUser
from detcore_server._page import (
    _across_pages,
    _checkpoint_pages,
    _experiment_pages,
    _link_pages,
    _list_pages,
    _log_pages,
    _series,
    _session_pages,
    _trial_pages,
)
from detcore_server._page._render import HOME, PageRoute, static_file
from detcore_server._page._verify import Verifier

if TYPE_CHECKING:
    from detcore_server._visit import Visit


def make_router(visit: Visit | None = None) -> APIRouter:
    """Return the routes of this part.

    Args:
        visit: The link that opens the page; None: users log in.
    """
    router = APIRouter(route_class=PageRoute, include_in_schema=False)
    verifier = Verifier()
    if visit is None:
        router.include_router(_session_pages.make_router())
    else:
        router.include_router(_link_pages.make_router(visit))
    router.include_router(_list_pages.make_router())
    router.include_router(_experiment_pages.make_router(verifier))
    router.include_router(_across_pages.make_router())
    router.include_router(_trial_pages.make_router(verifier))
    router.include_router(_log_pages.make_router())
    router.include_router(_checkpoint_pages.make_router(verifier))
    router.include_router(_series.make_router())

    @router.get("/ui/static/{name}")
    def get_static(request: Request, name: str) -> Response:
        return static_file(request, name)

    @router.get("/")
    @router.get("/ui")
    def show_home(_: PageUser) -> Response:
        return RedirectResponse(HOME, 303)

    @router.get("/ui/{rest:path}")
    def show_nothing(request: Request, _: PageUser, rest: str) -> Response:
        raise NotFoundError(
            f"there is no page {cut(request.url.path)!r}.\nThe first one is /ui/experiments"
        )

    return router
