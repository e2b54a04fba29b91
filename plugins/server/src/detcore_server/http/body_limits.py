"""Limits on the size of request bodies. `connection_limits` limits their duration."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastapi import HTTPException, Request

from detcore_server.users.authentication import find_token

if TYPE_CHECKING:
    from collections.abc import Mapping

    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from detcore_server.server_state import ServerState


_LIMIT = "detcore.limit"
# Sufficient for a name and a password.
_STRANGERS_BYTES = 64 * 2**10


def allow_body(request: Request, size_bytes: int) -> None:
    """Allow a larger body. Call this before reading any part of the body."""
    request.scope[_LIMIT]["size_bytes"] = size_bytes


class BodyLimits:
    """Rejects bodies that are too large (413).

    Without a valid token, only as many bytes as a login requires are read, because bodies are read
    before the routes' guards run.
    """

    def __init__(self, app: ASGIApp, state: ServerState) -> None:
        self._app = app
        self._state = state

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Forward a request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers: dict[bytes, bytes] = dict(scope["headers"])
        limit: dict[str, int] = {}
        scope[_LIMIT] = limit
        declared = headers.get(b"content-length", b"0")
        size = 0

        async def receive_part() -> Message:
            nonlocal size
            if not limit:
                limit["size_bytes"] = await self._find_limit(headers)
            message: Message = {}
            if not declared.isdigit() or int(declared) <= limit["size_bytes"]:
                message = await receive()
                size += len(message.get("body", b""))
            if not message or size > limit["size_bytes"]:
                raise HTTPException(
                    413, f"the body is too large; the maximum is {limit['size_bytes']} bytes"
                )
            return message

        await self._app(scope, receive_part, send)

    async def _find_limit(self, headers: Mapping[bytes, bytes]) -> int:
        scheme, _, token = headers.get(b"authorization", b"").decode("latin-1").partition(" ")
        is_known = scheme.lower() == "bearer" and await find_token(self._state, token.strip())
        return self._state.settings.max_body_bytes if is_known else _STRANGERS_BYTES
