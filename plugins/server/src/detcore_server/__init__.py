"""The HTTP server of the record store, ``detcore serve``.

Names are imported on first use: finding the plugin must not cost what using it costs.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from detcore_server._app import make_app
    from detcore_server._auth import Records, Requester
    from detcore_server._passwords import hash_password
    from detcore_server._settings import ServerSettings

__version__ = "0.1.0"

__all__ = ["Records", "Requester", "ServerSettings", "hash_password", "make_app"]

_HOMES = {
    "Records": "_auth",
    "Requester": "_auth",
    "ServerSettings": "_settings",
    "hash_password": "_passwords",
    "make_app": "_app",
}


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'detcore_server' has no attribute {name!r}")
    return getattr(importlib.import_module(f"detcore_server.{home}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
