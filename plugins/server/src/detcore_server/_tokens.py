"""A cache of valid tokens."""

from __future__ import annotations

import collections
import threading
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from detcore_server._database import TokenRecord


_FRESH_S = 3.0
_MAX_SIZE = 10_000


class TokenCache:
    """A cache of tokens that were valid a moment ago, to save a database query for each request.

    Only valid ones are kept: guesses cannot fill it. Methods may be called from several threads.
    """

    def __init__(self, *, fresh_s: float = _FRESH_S, max_size: int = _MAX_SIZE) -> None:
        self._fresh_s = fresh_s
        self._max_size = max_size
        self._lock = threading.Lock()
        self._kept: collections.OrderedDict[str, tuple[float, TokenRecord]]
        self._kept = collections.OrderedDict()
        # Counts calls of `drop`: a query that was in progress then may return an outdated record.
        self._generation = 0

    def get(self, key: str) -> TokenRecord | None:
        """Return the cached record of a token's digest, unless entry or token has expired."""
        with self._lock:
            found = self._kept.get(key)
        if found is None or time.monotonic() - found[0] > self._fresh_s:
            return None
        return found[1] if found[1].expires_at >= time.time() else None

    def find(self, key: str, find_token: Callable[[str], TokenRecord | None]) -> TokenRecord | None:
        """Query the database, and keep a valid token."""
        generation = self._generation
        since = time.monotonic()
        found = find_token(key)
        if found is not None:
            with self._lock:
                if generation == self._generation:
                    self._kept[key] = (since, found)
                    self._kept.move_to_end(key)
                    while len(self._kept) > self._max_size:
                        self._kept.popitem(last=False)
        return found

    def drop(self) -> None:
        """Forget all: a user has logged out, or has other rights."""
        with self._lock:
            self._generation += 1
            self._kept.clear()
