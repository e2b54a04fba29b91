"""Rendering of web pages and error pages."""

from __future__ import annotations

import datetime
import functools
import hashlib
import shlex
import urllib.parse
from typing import Annotated, Any

import jinja2
from fastapi import Form, Request, Response
from markupsafe import Markup
from pydantic import BaseModel, Field

from detcore_report import cut, make_templates
from detcore_server.pages.trial_table import sort_query, table_query

# The start page.
HOME = "/ui/experiments"


def _format_time(moment: datetime.datetime | None) -> object:
    """Format a time as an element, which the script converts to the browser's time zone."""
    if moment is None:
        return "-"
    utc = moment.astimezone(datetime.timezone.utc)
    return Markup('<time datetime="{}">{}</time>').format(
        utc.strftime("%Y-%m-%dT%H:%M:%SZ"), utc.strftime("%Y-%m-%d %H:%M:%S UTC")
    )


def _format_utc(seconds: float) -> str:
    """Format a time for a `<time>` element. Invalid times become the earliest time."""
    try:
        moment = datetime.datetime.fromtimestamp(seconds, datetime.timezone.utc)
    except (OverflowError, ValueError, OSError):
        moment = datetime.datetime.fromtimestamp(0, datetime.timezone.utc)
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


@functools.cache
def _load_templates() -> jinja2.Environment:
    templates = make_templates("detcore_server.pages")
    templates.globals.update(table_query=table_query, sort_query=sort_query)
    templates.filters.update(
        shell=shlex.quote,
        time=_format_time,
        utc=_format_utc,
        quoted=lambda value: urllib.parse.quote(str(value), safe=""),
    )
    return templates


def render(
    request: Request,
    template: str,
    *,
    status: int = 200,
    **values: Any,
) -> Response:
    """Render a page.

    Args:
        request: The request.
        template: Name of the template.
        status: HTTP status.
        values: Template values.
    """
    text = _load_templates().get_template(template).render(
        user=getattr(request.state, "user", None), path=request.url.path,
        is_personal=request.app.state.detcore.visit is not None, **values,
    )  # fmt: skip
    return answer_bytes(request, text.encode(), "text/html", status)


def answer_bytes(request: Request, body: bytes, media_type: str, status: int = 200) -> Response:
    """Respond with a body, or with 304 if the browser has it."""
    headers = {"ETag": f'"{hashlib.sha256(body).hexdigest()[:32]}"'}
    if status == 200 and request.headers.get("if-none-match") == headers["ETag"]:
        return Response(status_code=304, headers=headers)
    return Response(body, status, headers, media_type)


def is_page(path: str) -> bool:
    """Whether a path belongs to the web pages, which also show errors as pages."""
    return path in ("/", "/ui") or path.startswith("/ui/")


def error_page(request: Request, status: int, message: str) -> Response:
    """Render an error page."""
    if status == 404:
        # Further lines are for users at the server's terminal.
        message = message.partition("\n")[0]
    titles = {403: "Not allowed", 404: "Not found", 422: "Not understood"}
    return render(
        request, "error.html", status=status, title=titles.get(status, "Error"),
        message=cut(message, 4000),
    )  # fmt: skip


class _Description(BaseModel):
    """Form with labels and notes of an experiment or trial."""

    labels: Annotated[str, Field(max_length=10_000)] = ""
    notes: Annotated[str, Field(max_length=100_000)] = ""

    def label_list(self) -> list[str]:
        """Return the labels without duplicates."""
        texts = (text.strip() for text in self.labels.split(","))
        return list(dict.fromkeys(text for text in texts if text))

    def plain_notes(self) -> str:
        """Return the notes with Unix line endings."""
        return self.notes.replace("\r\n", "\n").strip()


DescriptionForm = Annotated[_Description, Form()]
