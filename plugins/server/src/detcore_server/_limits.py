"""Limits on the size of a request's body; for its speed see `detcore_server._protocol`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastapi import HTTPException, Request

from detcore_server._auth import find_token

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from detcore_server._state import ServerState


_BODY = "detcore.body"
# Enough for a name and a password.
_STRANGERS_BYTES = 64 * 2**10


def allow_body(request: Request, size_bytes: int) -> None:
    """Allow a larger body than others; call it before any part of the body is read."""
    request.scope[_BODY].limit = size_bytes


class BodyLimits:
    """Refuses bodies that are too large (413).

    Without a valid token, only as many bytes as a log-in needs are read: bodies are read before the
    routes' guards run.
    """

    def __init__(self, app: ASGIApp, state: ServerState) -> None:
        self._app = app
        self._state = state

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on."""
        if scope["type"] == "http":
            scope[_BODY] = body = _Body(self._state, scope, receive)
            receive = body.receive
        await self._app(scope, receive, send)


class _Body:
    """The body of one request, as it comes in."""

    __slots__ = ("_is_begun", "_receive", "_received", "_scope", "_state", "limit")

    def __init__(self, state: ServerState, scope: Scope, receive: Receive) -> None:
        self._state = state
        self._scope = scope
        self._receive = receive
        self._received = 0
        self._is_begun = False
        self.limit: int | None = None

    async def receive(self) -> Message:
        """Return the next message."""
        if not self._is_begun:
            self._is_begun = True
            await self._begin()
        assert self.limit is not None
        message = await self._receive()
        self._received += len(message.get("body", b""))
        if self._received > self.limit:
            raise _too_large(self.limit)
        return message

    async def _begin(self) -> None:
        given: dict[bytes, bytes] = dict(self._scope["headers"])
        if self.limit is None:
            scheme, _, token = given.get(b"authorization", b"").decode("latin-1").partition(" ")
            is_known = scheme.lower() == "bearer" and await find_token(self._state, token.strip())
            self.limit = self._state.settings.max_body_bytes if is_known else _STRANGERS_BYTES
        declared = given.get(b"content-length", b"0")
        if declared.isdigit() and int(declared) > self.limit:
            raise _too_large(self.limit)


def _too_large(limit: int) -> HTTPException:
    return HTTPException(413, f"the body is too large: at most {limit} bytes are taken in")
