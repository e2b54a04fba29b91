"""Routes of all web pages."""

from __future__ import annotations

from fastapi import APIRouter, Depends, Request, Response
from fastapi.responses import RedirectResponse
from fastapi.staticfiles import StaticFiles

from detcore.errors import NotFoundError
from detcore_report import STYLE, cut
from detcore_server.pages import (
    checkpoint_pages,
    compare_pages,
    experiment_pages,
    list_pages,
    series,
    session_pages,
    trial_pages,
)
from detcore_server.pages.render import HOME, answer_bytes
from detcore_server.users.authentication import require_page_user

_PARTS = (list_pages, experiment_pages, compare_pages, trial_pages, checkpoint_pages, series)


def make_router(*, is_personal: bool) -> APIRouter:
    """Create the routes of the web pages.

    Args:
        is_personal: Whether a one-time link opens the pages. Otherwise users log in.
    """
    router = APIRouter(include_in_schema=False)
    guards = [Depends(require_page_user)]
    router.include_router(session_pages.personal_router if is_personal else session_pages.router)
    for part in _PARTS:
        router.include_router(part.router, dependencies=guards)

    # uPlot and its licence are unmodified files of the npm package uplot.
    files = StaticFiles(packages=[("detcore_server.pages", "static")])

    @router.get("/ui/static/{name:path}")
    async def get_static(request: Request, name: str) -> Response:
        return await files.get_response(name, request.scope)

    @router.get("/ui/report.css")
    def get_style(request: Request) -> Response:
        return answer_bytes(request, STYLE.encode(), "text/css")

    @router.get("/", dependencies=guards)
    @router.get("/ui", dependencies=guards)
    def show_home() -> Response:
        return RedirectResponse(HOME, 303)

    @router.get("/ui/{rest:path}", dependencies=guards)
    def show_nothing(request: Request, rest: str) -> Response:
        raise NotFoundError(f"unknown page {cut(request.url.path)!r}.")

    return router
