"""Read the output of a process, and cut it into whole lines."""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Callable, Iterator
from typing import IO, Protocol

from detcore.contract.launch import Line

_MAX_LINE_BYTES = 1 << 20
# Cursor movements mean nothing where other ranks' lines come in between; colours (..m) stay.
_MOVEMENT = re.compile(rb"\x1b\[[0-9;?]*[A-LN-Za-ln-z]")
_READ_BYTES = 1 << 16
# A program that left its worker's session may hold the pipe open for ever.
_HELD_OPEN_S = 2.0


class Cutter(Protocol):
    """Makes lines of a stream of bytes."""

    def feed(self, data: bytes) -> Iterator[Line]:
        """Yield the lines that `data` completes."""

    def finish(self) -> Iterator[Line]:
        """Yield the rest at the end of the output."""


class LineCutter:
    """Cuts a stream into lines; a line rewritten with carriage returns counts in its last state."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> Iterator[Line]:
        """Yield the lines that `data` completes, then what stands on a line being rewritten."""
        *ended, rest = (self._rest + data).split(b"\n")
        for text in ended:
            yield from _final(text)
        # A return at the very end may be the first half of a line's end.
        head, separator, tail = rest.rpartition(b"\r")
        if separator and tail:
            rest = b"\r" + tail
            yield Line(_visible(tail), is_final=False)
        elif separator:
            state = _last_state(head)
            rest = b"\r" + state + b"\r"
            if state:
                yield Line(state, is_final=False)
        if len(rest) > _MAX_LINE_BYTES:
            yield from _final(rest)
            rest = b""
        self._rest = rest

    def finish(self) -> Iterator[Line]:
        """Yield the rest, which has no line end."""
        rest, self._rest = self._rest, b""
        if rest:
            yield from _final(rest)


def _final(text: bytes) -> Iterator[Line]:
    if text.endswith(b"\r") and b"\r" not in text[:-1]:
        text = text[:-1]
    if b"\r" not in text:
        yield Line(_visible(text))
        return
    state = _last_state(text)
    if state:
        yield Line(state)


def _last_state(text: bytes) -> bytes:
    for part in reversed(text.split(b"\r")):
        state = _visible(part)
        if state:
            return state if state.strip() else b""
    return b""


def _visible(text: bytes) -> bytes:
    return _MOVEMENT.sub(b"", text).strip(b"\b")


class RewriteLimit:
    """Says which states of lines that are being rewritten, such as progress bars, are shown.

    Args:
        interval_s: How often a state of a line is shown, in seconds.
    """

    def __init__(self, interval_s: float) -> None:
        self._interval_s = interval_s
        self._shown_at: dict[tuple[int, str], float] = {}

    def lets_through(self, rank: int, stream: str, line: Line) -> bool:
        """Whether to show a line now; a final one always is."""
        place, now = (rank, stream), time.monotonic()
        if line.is_final:
            self._shown_at.pop(place, None)
        elif now - self._shown_at.setdefault(place, now) < self._interval_s:
            return False
        else:
            self._shown_at[place] = now
        return True


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
