"""Limits on login attempts."""

from __future__ import annotations

import collections
import dataclasses
import hashlib
import math
import threading
import time
from collections.abc import Callable

_MAX_SIZE = 20_000


@dataclasses.dataclass(frozen=True, slots=True)
class _Limit:
    """Limit of `burst` immediate attempts, and one more attempt every `refill_s` seconds."""

    burst: int
    refill_s: float


# Limits for a user who mistypes, a machine that tries many names, and many machines that try one
# name. The last limit is high, because an attacker who reaches it locks out the real user.
_BOTH = _Limit(5, 12.0)
_ADDRESS = _Limit(50, 1.2)
_NAME = _Limit(100, 6.0)


class Throttle:
    """Counts login attempts by name, by address, and by both.

    An attempt counts from its start, which also limits concurrent attempts. A successful attempt
    does not count. Methods may be called from several threads.

    Args:
        max_size: Maximum number of names and addresses. The oldest are removed first.
        clock: Monotonic clock in seconds.
    """

    def __init__(
        self, *, max_size: int = _MAX_SIZE, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._max_size = max_size
        self._clock = clock
        self._lock = threading.Lock()
        # Number of counted attempts and time of this value, by key.
        self._levels: collections.OrderedDict[bytes, tuple[float, float]]
        self._levels = collections.OrderedDict()

    def begin(self, name: str, address: str) -> int:
        """Count an attempt and return 0, or return the required waiting time in seconds."""
        now = self._clock()
        keys = _keys(name, address)
        with self._lock:
            waits = [
                (self._level(key, limit, now) - (limit.burst - 1)) * limit.refill_s
                for key, limit in keys
            ]
            if max(waits) > 0:
                return max(1, math.ceil(max(waits)))
            for key, limit in keys:
                self._levels[key] = (self._level(key, limit, now) + 1, now)
                self._levels.move_to_end(key)
            while len(self._levels) > self._max_size:
                self._levels.popitem(last=False)
        return 0

    def succeed(self, name: str, address: str) -> None:
        """Reset the attempts of a name from an address after a successful login."""
        now = self._clock()
        with self._lock:
            for key, limit in _keys(name, address):
                level = 0.0 if limit is _BOTH else max(0.0, self._level(key, limit, now) - 1)
                if level > 0:
                    self._levels[key] = (level, now)
                else:
                    self._levels.pop(key, None)

    def _level(self, key: bytes, limit: _Limit, now: float) -> float:
        level, since = self._levels.get(key, (0.0, now))
        return max(0.0, level - (now - since) / limit.refill_s)


def _keys(name: str, address: str) -> list[tuple[bytes, _Limit]]:
    # Digests, because a name may be as long as a request body.
    return [
        (hashlib.sha256(f"{kind}\0{text}".encode(errors="replace")).digest(), limit)
        for kind, text, limit in (
            ("both", f"{name}\0{address}", _BOTH),
            ("address", address, _ADDRESS),
            ("name", name, _NAME),
        )
    ]
