"""Waiting for a database server that is away for a while: restarted, or moved to another host."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from detcore.contract.errors import DatabaseError

__all__ = ["DatabaseAway", "Patience"]

_T = TypeVar("_T")
_LONGEST_S = 600.0
_FIRST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 1.0


class DatabaseAway(DatabaseError):
    """The server of the records cannot be reached; it may be back soon."""


class Patience:
    """Tries to begin a transaction until the server is there; nothing was done before.

    Args:
        notice: Receives a message when a wait begins, and when it is over.
        longest_s: Seconds after which the error is raised.
        gives_up: Called between tries; if it returns True, the error is raised.
    """

    def __init__(
        self,
        notice: Callable[[str], None],
        *,
        longest_s: float = _LONGEST_S,
        gives_up: Callable[[], bool] = lambda: False,
    ) -> None:
        self._notice = notice
        self._longest_s = longest_s
        self._gives_up = gives_up

    def until_there(self, begin: Callable[[], _T]) -> _T:
        """Return what `begin` returns, which is called again while it raises `DatabaseAway`.

        Raises:
            DatabaseAway: If the server stays away.
        """
        since = time.monotonic()
        pause_s = _FIRST_PAUSE_S
        waits = False
        while True:
            try:
                value = begin()
            except DatabaseAway as away:
                if self._gives_up() or time.monotonic() - since >= self._longest_s:
                    raise
                if not waits:
                    reason = str(away).partition("\n")[0]
                    self._notice(f"waiting up to {self._longest_s:.0f} s: {reason}")
                    waits = True
                time.sleep(pause_s)
                pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
            else:
                if waits:
                    waited_s = time.monotonic() - since
                    self._notice(f"the records can be reached again, after {waited_s:.0f} s")
                return value
