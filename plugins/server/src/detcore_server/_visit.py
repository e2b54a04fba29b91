"""The one visitor of ``detcore ui``: a link that is good once, and the session that it opens."""

from __future__ import annotations

import getpass
import hmac
import math
import threading
from typing import TYPE_CHECKING

from detcore_server._database import TokenRecord, new_token, token_digest
from detcore_server._tokens import TokenCache

if TYPE_CHECKING:
    from collections.abc import Callable


class Visit(TokenCache):
    """Knows one link and one session, both in memory alone.

    It takes the place of the cache of tokens: no token of the records is good, so that the session
    leaves nothing in them. Methods may be called from several threads.
    """

    def __init__(self) -> None:
        super().__init__()
        self._opening = threading.Lock()
        self._session: str | None = None
        self._link = token_digest(link := new_token())
        self.link = link
        # No user of the records: ids there begin at 1.
        self._visitor = TokenRecord(
            user_id=0, user_name=_user_name(), is_admin=True, expires_at=math.inf
        )

    def open(self, link: str) -> str | None:
        """Return the token of the session; None if the link is wrong, or was used before."""
        with self._opening:
            if self._session is not None or not hmac.compare_digest(token_digest(link), self._link):
                return None
            token = new_token()
            self._session = token_digest(token)
            return token

    def get(self, key: str) -> TokenRecord | None:
        """Return the visitor for the digest of the session's token."""
        session = self._session
        is_known = session is not None and hmac.compare_digest(key, session)
        return self._visitor if is_known else None

    def find(self, key: str, find_token: Callable[[str], TokenRecord | None]) -> TokenRecord | None:
        """Return None without a look into the records."""
        return None


def _user_name() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user without a name
        return "you"
