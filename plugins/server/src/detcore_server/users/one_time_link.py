"""One-time link of ``detcore ui``, and the session that it opens."""

from __future__ import annotations

import getpass
import hmac
import math
import threading
from typing import TYPE_CHECKING

from starlette.responses import PlainTextResponse

from detcore_server.server_database import TokenRecord, new_token, token_digest

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send


class Visit:
    """One link and one session, kept only in memory.

    Tokens in the records are not valid here, and the session stores nothing in them. Methods may be
    called from several threads.
    """

    def __init__(self) -> None:
        self.link = new_token()
        self._opening = threading.Lock()
        self._session: str | None = None
        # Not a user in the records, whose ids start at 1.
        self._visitor = TokenRecord(
            user_id=0, user_name=_user_name(), is_admin=True, expires_at=math.inf
        )

    def open(self, link: str) -> str | None:
        """Return the session's token, or None if the link is wrong or was used before."""
        is_right = hmac.compare_digest(token_digest(link), token_digest(self.link))
        with self._opening:
            if self._session is not None or not is_right:
                return None
            token = new_token()
            self._session = token_digest(token)
            return token

    def find_token(self, digest: str) -> TokenRecord | None:
        """Return the visitor if this is the digest of the session's token."""
        session = self._session
        is_known = session is not None and hmac.compare_digest(digest, session)
        return self._visitor if is_known else None


class OwnHost:
    """Rejects requests for other host names.

    With DNS rebinding, another site's name may resolve to this machine. The browser would then let
    that site's scripts read the responses.
    """

    def __init__(self, app: ASGIApp, port: int) -> None:
        self._app = app
        self._hosts = {f"{name}:{port}".encode() for name in ("127.0.0.1", "localhost")}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Forward a request, or reject it."""
        if scope["type"] == "http":
            hosts = [value.lower() for name, value in scope["headers"] if name == b"host"]
            if len(hosts) != 1 or hosts[0] not in self._hosts:
                message = "This server is available only at 127.0.0.1 and localhost.\n"
                await PlainTextResponse(message, 421)(scope, receive, send)
                return
        await self._app(scope, receive, send)


def _user_name() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # users in containers may have no name
        return "you"
