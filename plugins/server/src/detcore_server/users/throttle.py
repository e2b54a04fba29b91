"""Limits on attempts to log in."""

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
    """A limit of `burst` attempts at once, and one more after each `refill_s`."""

    burst: int
    refill_s: float


# One user who mistypes; one machine that tries many names; many machines that try one name. The
# last limit is wide: an attacker who fills it locks the real user out.
_BOTH = _Limit(5, 12.0)
_ADDRESS = _Limit(50, 1.2)
_NAME = _Limit(100, 6.0)


class Throttle:
    """Counts attempts to log in by name, by address, and by both.

    An attempt counts when it begins, so that many at the same moment are not all allowed; one that
    succeeds does not count. Methods may be called from several threads.

    Args:
        max_size: How many names and addresses are remembered: the oldest are forgotten first.
        clock: Seconds that only go forward.
    """

    def __init__(
        self, *, max_size: int = _MAX_SIZE, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._max_size = max_size
        self._clock = clock
        self._lock = threading.Lock()
        # By key: attempts that count, and the time of that value.
        self._levels: collections.OrderedDict[bytes, tuple[float, float]]
        self._levels = collections.OrderedDict()

    def begin(self, name: str, address: str) -> int:
        """Count an attempt and return 0, or return how many seconds to wait before it."""
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
        """Do not count the attempt after all, nor earlier ones of this name from there."""
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
    # Digests: a name may be as long as a body.
    return [
        (hashlib.sha256(f"{kind}\0{text}".encode(errors="replace")).digest(), limit)
        for kind, text, limit in (
            ("both", f"{name}\0{address}", _BOTH),
            ("address", address, _ADDRESS),
            ("name", name, _NAME),
        )
    ]
