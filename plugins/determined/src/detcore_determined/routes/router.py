"""All routes of this API, and refusals of all other requests."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse
from fastapi.routing import APIRoute
from starlette.routing import Match

from detcore_determined.routes import (
    checkpoint_routes,
    cluster_routes,
    creation_routes,
    experiment_routes,
    log_routes,
    model_routes,
    trial_routes,
    user_routes,
)
from detcore_determined.routes.response_models import new_router, refuse
from detcore_server import Requester
from detcore_server.routes import error_body

_PARTS = (
    user_routes,
    cluster_routes,
    creation_routes,
    experiment_routes,
    trial_routes,
    log_routes,
    checkpoint_routes,
    model_routes,
)
_REFUSAL = "detcore does not have {} {} of Determined.\nSupported requests: docs/migrating.md"
_METHODS = ["GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS", "TRACE"]


def make_router() -> APIRouter:
    """Return the routes of this part."""
    routers = [part.router for part in _PARTS]
    router = new_router()
    for part in routers:
        router.include_router(part)

    @router.api_route("/api/v1/{rest:path}", methods=_METHODS, include_in_schema=False)
    async def refuse_unknown(request: Request, _: Requester, rest: str) -> Response:
        """Refuse a request for something that detcore does not have."""
        there = [
            route
            for part in routers
            for route in part.routes
            if isinstance(route, APIRoute) and route.matches(request.scope)[0] is not Match.NONE
        ]
        # A route with the exact path takes precedence over one with a parameter.
        there = [route for route in there if "{" not in route.path] or there
        allowed = {method for route in there for method in route.methods or ()}
        message = _REFUSAL.format(request.method, f"/api/v1/{rest}")
        if allowed:
            # Refused here, because the error handler would treat this route as accepting all
            # requests.
            body = error_body(request.url.path, 405, "NotFoundError", message)
            return JSONResponse(body, 405, {"Allow": ", ".join(sorted(allowed))})
        raise refuse(404, message)

    @router.get("/resources/{rest:path}", include_in_schema=False)
    async def refuse_resources(_: Requester, rest: str) -> Response:
        """Refuse requests for the usage of a cluster, which detcore does not have."""
        raise refuse(404, _REFUSAL.format("GET", f"/resources/{rest}"))

    return router
