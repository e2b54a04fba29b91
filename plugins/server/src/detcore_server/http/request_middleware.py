"""Middleware for every request: log line, headers and error response."""

from __future__ import annotations

import logging
import secrets
import time
from typing import TYPE_CHECKING

from starlette.datastructures import MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse

from detcore_server.http.error_answers import error_body
from detcore_server.http.server_log import LOGGER
from detcore_server.pages.render import is_page
from detcore_server.users.authentication import USER

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send


# Default headers, unless a route sets them. Pages cannot be embedded in other sites.
_HEADERS = {
    "Cross-Origin-Resource-Policy": "same-origin",
    # Not "no-referrer", because the page's forms must send their origin.
    "Referrer-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
_API_HEADERS = {
    **_HEADERS,
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
}
_PAGE_HEADERS = {
    **_HEADERS,
    # Browsers revalidate pages, and unchanged pages are answered with 304.
    "Cache-Control": "private, no-cache",
    # No external resources, no inline scripts or styles, and no forms to other sites.
    "Content-Security-Policy": "default-src 'none'; style-src 'self'; script-src 'self'; "
    "img-src 'self'; connect-src 'self'; form-action 'self'; base-uri 'none'; "
    "frame-ancestors 'none'",
    "Cross-Origin-Opener-Policy": "same-origin",
}
_MAX_SHOWN = 200
_log = logging.getLogger(LOGGER)


class Front:
    """Logs requests, adds headers, and responds to faults with a number that is in the log."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Forward a request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        since = time.perf_counter()
        status = 0
        defaults = _PAGE_HEADERS if is_page(scope["path"]) else _API_HEADERS

        async def send_on(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                for name, value in defaults.items():
                    headers.setdefault(name, value)
            await send(message)

        try:
            await self._app(scope, receive, send_on)
        except ClientDisconnect:
            pass  # the client has disconnected
        except Exception:  # noqa: BLE001  (no error of a route may stop the server)
            # The response contains only the number, because the reason may contain secrets.
            number = secrets.token_hex(4)
            _log.exception("fault %s: %s %s", number, scope["method"], _format_path(scope))
            if not status:
                text = f"internal server error; see fault {number} in the server's log"
                body = error_body(scope["path"], 500, "ServerError", text)
                await JSONResponse(body, 500)(scope, receive, send_on)
        finally:
            if _log.isEnabledFor(logging.INFO):
                duration_ms = (time.perf_counter() - since) * 1e3
                client = scope.get("client")
                address = client[0] if client else "-"
                user = ascii(scope.get(USER, "-")).strip("'")
                line = "%s %s %s %s %d %.1f ms"
                path = _format_path(scope)
                _log.info(line, address, user, scope["method"], path, status, duration_ms)


def _format_path(scope: Scope) -> str:
    """Return the raw path without the query, truncated to one line."""
    raw: bytes = scope.get("raw_path") or scope["path"].encode()
    text = raw.decode("ascii", "backslashreplace")
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}..."
