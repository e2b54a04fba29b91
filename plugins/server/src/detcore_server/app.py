"""FastAPI application with all routes and their guards."""

from __future__ import annotations

import contextlib
import pkgutil
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

from fastapi import APIRouter, Depends, FastAPI

from detcore import __version__
from detcore.errors import RunError
from detcore.plugins import describe_error
from detcore_server.api import client_routes, job_routes, user_routes
from detcore_server.http.body_limits import BodyLimits
from detcore_server.http.error_answers import ErrorAnswer, install_error_handlers
from detcore_server.http.request_middleware import Front
from detcore_server.pages import page_routes
from detcore_server.server_state import ServerState
from detcore_server.users.authentication import Requester, require_user
from detcore_server.users.one_time_link import OwnHost

if TYPE_CHECKING:
    from detcore.plugins import PluginManager
    from detcore_server.server_settings import ServerSettings
    from detcore_server.users.one_time_link import Visit


def make_app(settings: ServerSettings, *, visit: Visit | None = None) -> FastAPI:
    """Create a server's application. Its database stays open until the application ends.

    Args:
        settings: The server's settings.
        visit: One-time link of ``detcore ui``. Its visitor gets only the page. No submitted
            experiment is started, because a server with the same records may start it. None: users
            log in.

    Raises:
        DatabaseError: If the database cannot be opened.
        RunError: If a plugin's routes cannot be created.
    """
    routers_of_plugins = make_routers(settings.plugins) if visit is None else []
    state = ServerState.open(settings, visit=visit)

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        if visit is None:
            state.jobs.start()
        try:
            yield
        finally:
            state.jobs.stop()
            state.close()

    app = FastAPI(
        title="detcore",
        version=__version__,
        lifespan=lifespan,
        # The OpenAPI document requires a token, and its viewers would load external assets.
        openapi_url=None,
        responses={
            "4XX": {"model": ErrorAnswer},
            "5XX": {"model": ErrorAnswer},
        },
    )
    app.state.detcore = state
    install_error_handlers(app)
    app.add_middleware(BodyLimits, state=state)
    if visit is not None:
        app.add_middleware(OwnHost, port=settings.port)
    app.add_middleware(Front)
    app.include_router(page_routes.make_router(is_personal=visit is not None))
    if visit is not None:
        return app
    for routes in (user_routes, client_routes, job_routes):
        app.include_router(routes.router)
    # Registered last, so that plugin routes cannot replace other routes.
    for router in routers_of_plugins:
        app.include_router(router)

    @app.get("/openapi.json", include_in_schema=False)
    def get_openapi(_: Requester) -> dict[str, Any]:
        return app.openapi()

    return app


def make_routers(plugins: PluginManager) -> list[APIRouter]:
    """Create the routers of all plugins.

    Raises:
        RunError: If a plugin's router cannot be created.
    """
    routers = []
    for name, routes in plugins.routes().items():
        guards = [] if routes.has_guards else [Depends(require_user)]
        router = APIRouter(dependencies=guards)
        try:
            router.include_router(_load_router(routes.make_router))
        except Exception as error:
            plugin = plugins.find_routes_provider(name)
            raise RunError(
                f"the server cannot start: the plugin {plugin.label} fails to create its routes "
                f"{name!r} ({routes.make_router}): {describe_error(error)}.\n"
                f"Start without the plugin: detcore --no-plugin {plugin.name} serve"
            ) from error
        routers.append(router)
    return routers


def _load_router(place: str) -> APIRouter:
    router = pkgutil.resolve_name(place)()
    if not isinstance(router, APIRouter):
        raise TypeError(f"expected a fastapi.APIRouter, got {router!r}")
    return router
