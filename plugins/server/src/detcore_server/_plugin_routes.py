"""The routes that plugins add, each for users who have logged in unless it has guards itself."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from fastapi import APIRouter, Depends

from detcore.errors import RunError
from detcore.hooks import describe_error
from detcore_server._auth import require_user

if TYPE_CHECKING:
    from detcore.hooks import PluginManager, RoutesType

__all__ = ["make_routers"]


def make_routers(plugins: PluginManager) -> list[APIRouter]:
    """Return the routers of all plugins.

    Raises:
        RunError: If a plugin's router cannot be made.
    """
    routers = []
    for name, routes in plugins.routes().items():
        try:
            made = _load(routes)
        except Exception as error:
            plugin = plugins.provider_of_routes(name)
            raise RunError(
                f"the server cannot start: the plugin {plugin.label} fails to make its routes "
                f"{name!r} ({routes.make_router}): {describe_error(error)}.\n"
                f"Start it without them: detcore --no-plugin {plugin.name} serve"
            ) from error
        guards = [] if routes.has_guards else [Depends(require_user)]
        router = APIRouter(dependencies=guards)
        router.include_router(made)
        routers.append(router)
    return routers


def _load(routes: RoutesType) -> APIRouter:
    module, _, path = routes.make_router.partition(":")
    make: Any = importlib.import_module(module)
    for attribute in path.split("."):
        make = getattr(make, attribute)
    router = make()
    if not isinstance(router, APIRouter):
        raise TypeError(f"it returned {router!r}, which is no fastapi.APIRouter")
    return router
