"""When a trial that crashed starts again."""

from __future__ import annotations

import time
from collections.abc import Callable

__all__ = ["Restarts"]

_FIRST_PAUSE_S = 1.0
_LONGEST_PAUSE_S = 30.0


class Restarts:
    """Gives trials that crash pauses, which grow while a trial comes no further.

    Args:
        most: How often a trial is started again in all.
        clock: Gives the time, in seconds.
    """

    def __init__(self, most: int, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.most = most
        self._clock = clock
        self._next_pause_s: dict[int, float] = {}
        self._starts_at: dict[int, float] = {}
        self._faults: dict[int, tuple[str, int]] = {}

    def is_repeated(
        self, index: int, fault: tuple[str, int] | None, *, made_progress: bool
    ) -> bool:
        """Note an exception; return whether it is certain to come again.

        Args:
            index: The trial's number in its search.
            fault: Kind and place of the exception, and the batch; None if it may not come again.
            made_progress: As in `crashed`.

        Returns:
            Whether the same exception ended the trial's start before this one, with no new
            checkpoint in between.
        """
        last = self._faults.pop(index, None)
        if fault is None:
            return False
        self._faults[index] = fault
        return fault == last and not made_progress

    def crashed(self, index: int, *, made_progress: bool) -> float:
        """Note that a trial crashed and will start again.

        Args:
            index: The trial's number in its search.
            made_progress: Whether it has a later checkpoint than the one it started from.

        Returns:
            Seconds that it waits: 0 for the first crash and after progress, then 1, 2, 4, ..., 30.
        """
        pause_s = 0.0 if made_progress else self._next_pause_s.get(index, 0.0)
        self._next_pause_s[index] = min(pause_s * 2 or _FIRST_PAUSE_S, _LONGEST_PAUSE_S)
        self._starts_at[index] = self._clock() + pause_s
        return pause_s

    def is_waiting(self, index: int) -> bool:
        """Whether it is too early to start a trial."""
        return self._clock() < self._starts_at.get(index, 0.0)
