"""All routes of the page."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from detcore.describe import cut
from detcore.errors import NotFoundError
from detcore_server._auth import PageUser
from detcore_server._page import (
    _checkpoint_pages,
    _experiment_pages,
    _list_pages,
    _session_pages,
    _trial_pages,
)
from detcore_server._page._render import PageRoute
from detcore_server._page._verify import Verifier

__all__ = ["make_router"]


def make_router() -> APIRouter:
    """Return the routes of this part."""
    router = APIRouter(route_class=PageRoute, include_in_schema=False)
    verifier = Verifier()
    router.include_router(_session_pages.make_router())
    router.include_router(_list_pages.make_router())
    router.include_router(_experiment_pages.make_router(verifier))
    router.include_router(_trial_pages.make_router(verifier))
    router.include_router(_checkpoint_pages.make_router(verifier))

    @router.get("/ui/{rest:path}")
    def show_nothing(request: Request, _: PageUser, rest: str) -> Response:
        raise NotFoundError(
            f"there is no page {cut(request.url.path)!r}.\nThe first one is /ui/experiments"
        )

    return router
