"""The HTTP server of the record store, ``detcore serve``; needs the extra ``detcore[server]``.

Nothing else in detcore imports this package, except the commands that start it and manage users.
"""

from detcore.server._accounts import check_name, check_new_password
from detcore.server._app import make_app
from detcore.server._passwords import hash_password
from detcore.server._serve import serve
from detcore.server._settings import ServerSettings
from detcore.server._tls import check_certificate

__all__ = [
    "ServerSettings",
    "check_certificate",
    "check_name",
    "check_new_password",
    "hash_password",
    "make_app",
    "serve",
]
