"""Whether a server is within reach, as its askers in one process know it."""

from __future__ import annotations

import threading

__all__ = ["Reach"]


class Reach:
    """Shared by a trial's sender and its reader: one outage is waited for once. Thread-safe.

    Whoever finds the server away says so. From then on the reader asks nothing, until the sender,
    in whose thread waiting costs nothing, got through again.
    """

    def __init__(self) -> None:
        self._away = threading.Event()

    @property
    def is_away(self) -> bool:
        """Whether the server did not answer when it was asked last."""
        return self._away.is_set()

    def lost(self) -> None:
        """Take note that the server did not answer."""
        self._away.set()

    def found(self) -> None:
        """Take note that it did."""
        self._away.clear()
