"""The application of ``detcore ui``: the page for one visitor, and no other route."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from fastapi import FastAPI
from starlette.responses import PlainTextResponse

from detcore_server import _errors, _page
from detcore_server._auth import LogInFirst
from detcore_server._front import Front
from detcore_server._limits import BodyLimits
from detcore_server._page import refuse
from detcore_server._state import ServerState

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

    from detcore_server._settings import ServerSettings
    from detcore_server._visit import Visit


def make_ui_app(settings: ServerSettings, visit: Visit) -> FastAPI:
    """Return the application; its database is open until the application ends.

    It starts no submitted experiment: a server that uses the same records may.

    Raises:
        DatabaseError: If the database cannot be opened.
    """
    state = ServerState.open(settings, visit=visit)

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        try:
            yield
        finally:
            state.close()

    app = FastAPI(title="detcore", lifespan=lifespan, openapi_url=None)
    app.state.detcore = state
    _errors.install(app)
    app.add_exception_handler(LogInFirst, refuse)
    app.add_middleware(BodyLimits, state=state)
    app.add_middleware(_OwnHost, port=settings.port)
    app.add_middleware(Front)
    app.include_router(_page.make_router(visit))
    return app


class _OwnHost:
    """Refuses requests for another host name.

    The name of another site may lead to this machine (DNS rebinding); the browser would then let
    that site's scripts read the answers.
    """

    def __init__(self, app: ASGIApp, port: int) -> None:
        self._app = app
        self._hosts = {f"{name}:{port}".encode() for name in ("127.0.0.1", "localhost")}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        if scope["type"] == "http":
            hosts = [value.lower() for name, value in scope["headers"] if name == b"host"]
            if len(hosts) != 1 or hosts[0] not in self._hosts:
                told = "This server answers at 127.0.0.1 and localhost alone.\n"
                await PlainTextResponse(told, 421)(scope, receive, send)
                return
        await self._app(scope, receive, send)
