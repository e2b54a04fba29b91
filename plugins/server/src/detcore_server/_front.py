"""Middleware for every request: a line in the log, headers, and an answer when it fails."""

from __future__ import annotations

import json
import logging
import secrets
import time
from typing import TYPE_CHECKING

from starlette.requests import ClientDisconnect

from detcore_server._auth import USER
from detcore_server._errors import error_body
from detcore_server._log import LOGGER

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send


# Unless a route sets them: browsers must not keep answers, or show them as part of other pages.
_HEADERS = (
    (b"cache-control", b"no-store"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"referrer-policy", b"same-origin"),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
)
_MAX_SHOWN = 200
_log = logging.getLogger(LOGGER)


class Front:
    """Logs requests, adds headers, and answers faults with a number to find in the log."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        since = time.perf_counter()
        status = 0

        async def send_on(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = message.setdefault("headers", [])
                there = {name.lower() for name, _ in headers}
                message["headers"] = [
                    *headers,
                    *(header for header in _HEADERS if header[0] not in there),
                ]
            await send(message)

        try:
            await self._app(scope, receive, send_on)
        except ClientDisconnect:
            pass  # the client is gone
        except Exception:  # noqa: BLE001  (no error of a route may stop the server)
            # The answer has the number alone: the reason may hold anything.
            number = secrets.token_hex(4)
            _log.exception("fault %s: %s %s", number, scope["method"], _shown(scope))
            if not status:
                await _answer(scope, number, send_on)
        finally:
            if _log.isEnabledFor(logging.INFO):
                duration_ms = (time.perf_counter() - since) * 1e3
                client = scope.get("client")
                address = client[0] if client else "-"
                user = ascii(scope.get(USER, "-")).strip("'")
                line = "%s %s %s %s %d %.1f ms"
                shown = _shown(scope)
                _log.info(line, address, user, scope["method"], shown, status, duration_ms)


async def _answer(scope: Scope, number: str, send: Send) -> None:
    told = f"the server failed at this; its log says why.\nLook there for: fault {number}"
    body = json.dumps(error_body(scope["path"], 500, "ServerError", told)).encode()
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
    ]
    await send({"type": "http.response.start", "status": 500, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def _shown(scope: Scope) -> str:
    """Return the path as it was sent, without the query; at most a line."""
    raw: bytes = scope.get("raw_path") or scope["path"].encode()
    text = raw.decode("ascii", "backslashreplace")
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}..."
