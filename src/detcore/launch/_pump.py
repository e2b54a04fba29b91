"""Threads that read the output of a process."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from typing import IO

from detcore.launch._lines import Cutter, Line

__all__ = ["Pump"]

_READ_BYTES = 1 << 16
# A program that left its worker's session may hold the pipe open for ever.
_HELD_OPEN_S = 2.0


class Pump:
    """Reads one stream of one worker to its end, and hands on its lines.

    Args:
        stream: The reading end; closed at the end.
        rank: Whose.
        name: ``"stdout"`` or ``"stderr"``.
        take: Called with the rank, the name and each line.
        cutter: Splits the stream into lines.
    """

    def __init__(
        self,
        stream: IO[bytes],
        rank: int,
        name: str,
        take: Callable[[int, str, Line], None],
        cutter: Cutter,
    ) -> None:
        self._cutter = cutter
        self._stream = stream
        self._rank = rank
        self._name = name
        self._take = take
        self._waits_since: float | None = None
        self._thread = threading.Thread(
            target=self._run, name=f"detcore-{name}-{rank}", daemon=True
        )
        self._thread.start()

    def _run(self) -> None:
        cutter = self._cutter
        with self._stream:
            while True:
                self._waits_since = time.monotonic()
                data = os.read(self._stream.fileno(), _READ_BYTES)
                self._waits_since = None
                for line in cutter.feed(data) if data else cutter.finish():
                    self._take(self._rank, self._name, line)
                if not data:
                    return

    def join(self) -> None:
        """Wait until all is read, of a process that has ended."""
        began = time.monotonic()
        while self._thread.is_alive():
            self._thread.join(0.1)
            waits_since = self._waits_since
            if waits_since and time.monotonic() - max(waits_since, began) > _HELD_OPEN_S:
                return
