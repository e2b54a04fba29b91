"""Close resources that a background write may still need."""

from __future__ import annotations

import threading
from collections.abc import Callable


class WhenFree:
    """Closes resources once they are no longer held.

    A background write needs the session longer than the trial does.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._num_holds = 0
        self._waiting: list[Callable[[], None]] = []

    def hold(self) -> None:
        """Let `run` wait; each call needs a `release`."""
        with self._lock:
            self._num_holds += 1

    def release(self) -> None:
        """Take a hold back; the last one runs what waits, on this thread."""
        with self._lock:
            self._num_holds -= 1
            actions = [] if self._num_holds else self._waiting
            if actions:
                self._waiting = []
        for action in actions:
            action()

    def run(self, action: Callable[[], None]) -> None:
        """Call a function, now or once nothing holds the resources."""
        with self._lock:
            if self._num_holds:
                self._waiting.append(action)
                return
        action()
