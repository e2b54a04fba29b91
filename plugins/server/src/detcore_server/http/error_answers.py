"""Error responses, which a client raises again with the same class and message."""

from __future__ import annotations

import urllib.parse
from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import RedirectResponse
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.routing import compile_path

from detcore import errors
from detcore_server.http.responses import AsciiJson
from detcore_server.pages.render import error_page, is_page
from detcore_server.users.authentication import LogInFirst

# The first match counts. Other errors are server faults (500).
_STATUS = (
    (errors.UnauthenticatedError, 401),
    (errors.TooManyLoginAttemptsError, 429),
    (errors.ForbiddenError, 403),
    (errors.NotFoundError, 404),
    (errors.StorageFullError, 507),
    (errors.ConfigError, 400),
    (errors.InvalidArgumentError, 400),
    (errors.UnsafePathError, 400),
    (errors.DatabaseError, 409),
    (errors.DetcoreError, 409),
)
# Class names of errors that have only a status.
_KINDS = {404: "NotFoundError", 408: "ServerUnavailableError", 503: "ServerUnavailableError"}
_PARTS_LISTED = 10
# Attributes of errors in addition to the message.
_DETAILS = ("missing_bytes", "rank", "ranks", "retry_after_s", "uuid")
_WITHOUT_LINK = (
    "Only the browser that opened the link from detcore ui may see this page.\n"
    "The terminal shows the link. If another browser has used it, press Ctrl-C in the terminal and "
    "run detcore ui again."
)


class ErrorText(BaseModel):
    """Class, message and attributes of an error."""

    type: str
    message: str
    details: dict[str, Any] = {}


class ErrorAnswer(BaseModel):
    """Response to a failed request."""

    error: ErrorText


def error_body(
    path: str, status: int, kind: str, message: str, details: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return the body of an error response in the format for clients of `path`."""
    body: dict[str, Any] = {"type": kind, "message": message}
    if details:
        body["details"] = details
    if not path.startswith("/api/detcore/"):
        body.update(code=status, reason=kind, error=message)  # names in Determined's API
    return {"error": body}


def install_error_handlers(app: FastAPI) -> None:
    """Install handlers that respond to expected errors with JSON or an error page."""

    @app.exception_handler(errors.DetcoreError)
    async def answer(request: Request, error: errors.DetcoreError) -> Response:
        status = next(status for kind, status in _STATUS if isinstance(error, kind))
        headers = {}
        if status == 401:
            headers["WWW-Authenticate"] = "Bearer"
        if isinstance(error, errors.TooManyLoginAttemptsError):
            headers["Retry-After"] = str(error.retry_after_s)
        details = {name: vars(error)[name] for name in _DETAILS if name in vars(error)}
        message = _hide_database(request, str(error))
        return _answer(request, status, _public_name(error), message, headers, details)

    @app.exception_handler(HTTPException)
    async def answer_http(request: Request, error: HTTPException) -> Response:
        kind = _KINDS.get(error.status_code, "InvalidArgumentError")
        headers = dict(error.headers or {})
        if error.status_code == 405 and (methods := _documented_methods(app, request.url.path)):
            # Starlette lists only the methods of the first matching route.
            headers["Allow"] = ", ".join(sorted(methods))
        return _answer(request, error.status_code, kind, str(error.detail), headers)

    @app.exception_handler(RequestValidationError)
    async def answer_invalid(request: Request, error: RequestValidationError) -> Response:
        # The values are omitted because they may be long or contain a password.
        messages = [
            f"{'.'.join(str(part) for part in detail['loc'])}: {detail['msg']}"
            for detail in error.errors()[:_PARTS_LISTED]
        ]
        return _answer(request, 422, "InvalidArgumentError", "\n".join(messages), {})

    @app.exception_handler(LogInFirst)
    async def redirect(request: Request, error: LogInFirst) -> Response:
        if request.app.state.detcore.visit is not None:
            return error_page(request, 403, _WITHOUT_LINK)
        query = f"?{urllib.parse.urlencode({'next': error.path})}" if error.path else ""
        return RedirectResponse(f"/ui/login{query}", 303)


def _documented_methods(app: FastAPI, path: str) -> set[str]:
    return {
        method.upper()
        for template, operations in app.openapi()["paths"].items()
        if compile_path(template)[0].match(path)
        for method in operations
    }


def _public_name(error: errors.DetcoreError) -> str:
    """Return the name of the nearest public base class."""
    return next(
        str(kind.__name__)
        for kind in type(error).__mro__
        if getattr(errors, kind.__name__, None) is kind
    )


def _hide_database(request: Request, message: str) -> str:
    """Replace the database's URL and path in a message by the server's address."""
    state = request.app.state.detcore
    url = state.database.url
    for place in (url, url.removeprefix("sqlite:///")):
        message = message.replace(place, state.settings.url)
    return message


def _answer(
    request: Request,
    status: int,
    kind: str,
    message: str,
    headers: Mapping[str, str],
    details: Mapping[str, Any] | None = None,
) -> Response:
    path = request.url.path
    response = (
        error_page(request, status, message)
        if is_page(path)
        else AsciiJson(error_body(path, status, kind, message, details), status)
    )
    response.headers.update(headers)
    return response
