"""Web pages as answers: templates, headers, and errors."""

from __future__ import annotations

import datetime
import functools
import hashlib
import importlib.resources
import re
import shlex
import urllib.parse
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

import jinja2
from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse
from fastapi.routing import APIRoute
from markupsafe import Markup
from starlette.exceptions import HTTPException

from detcore.describe import format_bytes, format_duration, format_number
from detcore.errors import DetcoreError, ForbiddenError, NotFoundError
from detcore_report import STYLE, cut, escape
from detcore_server._page._trial_table import sort_query, table_query

if TYPE_CHECKING:
    from detcore_server._database import TokenRecord


_FOLDER = importlib.resources.files("detcore_server._page")
# The first page.
HOME = "/ui/experiments"
# Nothing from outside, nothing written into the page itself, no form that leads elsewhere.
POLICY = (
    "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    # A form of the page must say where it comes from, so not "no-referrer".
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    # Pages are requested again and again, and answered with 304 if they have not changed.
    "Cache-Control": "private, no-cache",
}
_DATABASE = re.compile(r"( yet)? in (sqlite|postgresql)[a-z0-9+]*:\S*[^\s.]")
# uPlot and its licence come unchanged from npm, as package uplot.
_STATIC = {
    "charts.js": "static/charts.js",
    "icon.svg": "static/icon.svg",
    "page.css": "static/page.css",
    "page.js": "static/page.js",
    "uplot.css": "static/uplot/uPlot.min.css",
    "uplot.js": "static/uplot/uPlot.iife.min.js",
}
_TYPES = {"css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}


def svg(html: str) -> Markup:
    """Return HTML that `detcore_report` made, marked to need no escaping."""
    return Markup(html)


def _safe(value: object) -> object:
    """Return a value as text of a page, without the signs that turn or end the text around it."""
    return value if isinstance(value, Markup) else svg(escape(value))


def _time(moment: datetime.datetime | None) -> object:
    """Return a moment as an element; the script shows it in the time zone of the browser."""
    if moment is None:
        return "-"
    utc = moment.astimezone(datetime.timezone.utc)
    return Markup('<time datetime="{}">{}</time>').format(
        utc.strftime("%Y-%m-%dT%H:%M:%SZ"), utc.strftime("%Y-%m-%d %H:%M:%S UTC")
    )


def _utc(seconds: float) -> str:
    """Return a moment as text, for a `<time>`; one that no calendar has is the first of all."""
    try:
        moment = datetime.datetime.fromtimestamp(seconds, datetime.timezone.utc)
    except (OverflowError, ValueError, OSError):
        moment = datetime.datetime.fromtimestamp(0, datetime.timezone.utc)
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


@functools.cache
def _templates() -> jinja2.Environment:
    templates = jinja2.Environment(
        loader=jinja2.PackageLoader("detcore_server._page"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        finalize=_safe,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    templates.globals.update(table_query=table_query, sort_query=sort_query)
    templates.filters.update(
        bytes=format_bytes,
        cut=cut,
        duration=format_duration,
        number=format_number,
        shell=shlex.quote,
        time=_time,
        utc=_utc,
        quoted=lambda value: urllib.parse.quote(str(value), safe=""),
    )
    return templates


def render(
    request: Request,
    template: str,
    user: TokenRecord | None,
    *,
    status: int = 200,
    **values: Any,
) -> Response:
    """Return a page.

    Args:
        request: The request that it answers.
        template: Name of the template.
        user: The user who has logged in, or None.
        status: HTTP status.
        values: Values for the template.
    """
    is_personal = request.app.state.detcore.is_personal
    text = _templates().get_template(template).render(
        user=user, path=request.url.path, is_personal=is_personal, **values
    )  # fmt: skip
    body = text.encode()
    mark = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
    if status == 200 and request.headers.get("if-none-match") == mark:
        return Response(status_code=304, headers={"ETag": mark})
    return HTMLResponse(body, status, headers={"ETag": mark})


def static_file(request: Request, name: str) -> Response:
    """Return a stylesheet, a script or the icon.

    Raises:
        NotFoundError: If there is no such file.
    """
    if name not in _STATIC:
        raise NotFoundError(f"there is no file {cut(name)!r}")
    text = _FOLDER.joinpath(_STATIC[name]).read_text(encoding="utf-8")
    body = (STYLE + text if name == "page.css" else text).encode()
    mark = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
    if request.headers.get("if-none-match") == mark:
        return Response(status_code=304, headers={"ETag": mark})
    return Response(body, media_type=_TYPES[name.rpartition(".")[2]], headers={"ETag": mark})


class PageRoute(APIRoute):
    """A route whose answers are web pages, errors included; no answer may load anything."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return the handler of requests."""
        answer = super().get_route_handler()

        async def guarded(request: Request) -> Response:
            try:
                response = await answer(request)
            except NotFoundError as error:
                # Further lines are for users of the server's own terminal: commands, its database.
                first = str(error).partition("\n")[0]
                response = _error_page(request, 404, _DATABASE.sub("", first))
            except DetcoreError as error:
                status = 403 if isinstance(error, ForbiddenError) else 409
                response = _error_page(request, status, str(error))
            except HTTPException as error:
                response = _error_page(request, error.status_code, str(error.detail))
            except RequestValidationError as error:
                # Without the values: they may be as long as a body.
                found = [f"{each['loc'][-1]}: {each['msg']}" for each in error.errors()[:5]]
                response = _error_page(request, 422, "\n".join(found))
            response.headers.update(HEADERS)
            return response

        return guarded


def _error_page(request: Request, status: int, message: str) -> Response:
    titles = {403: "Not allowed", 404: "Not found", 422: "Not understood"}
    return render(
        request, "error.html", None, status=status, title=titles.get(status, "That did not work"),
        message=cut(message, 4000),
    )  # fmt: skip
