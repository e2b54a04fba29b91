"""HTTP server of the record store (``detcore serve``).

Names are imported on first use, so that plugin discovery stays fast.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from detcore.lazy import lazy_names

if TYPE_CHECKING:
    from detcore_server.app import make_app
    from detcore_server.server_settings import ServerSettings
    from detcore_server.users.authentication import Records, Requester

__version__ = "0.1.0"

__all__ = ["Records", "Requester", "ServerSettings", "make_app"]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "app": "make_app",
        "server_settings": "ServerSettings",
        "users.authentication": "Records Requester",
    },
)
