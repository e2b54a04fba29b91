"""Read the output of a process, and split it into lines."""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Callable, Iterator
from typing import IO, Protocol

from detcore.contract.launch import Line

_MAX_LINE_BYTES = 1 << 20
# Cursor movements have no effect between the lines of other ranks. Colours (..m) are kept.
_MOVEMENT = re.compile(rb"\x1b\[[0-9;?]*[A-LN-Za-ln-z]")
_READ_BYTES = 1 << 16
# A program that left its worker's session may hold the pipe open forever.
_HELD_OPEN_S = 2.0


class Cutter(Protocol):
    """Splits a stream of bytes into lines."""

    def feed(self, data: bytes) -> Iterator[Line]:
        """Yield the lines that `data` completes."""

    def finish(self) -> Iterator[Line]:
        """Yield the remaining line at the end of the output."""


class LineCutter:
    """Splits a stream into lines, with the last state of lines rewritten by carriage returns."""

    def __init__(self) -> None:
        self._remaining = b""

    def feed(self, data: bytes) -> Iterator[Line]:
        """Yield the lines that `data` completes, then the state of a line being rewritten."""
        *complete_lines, remaining = (self._remaining + data).split(b"\n")
        for text in complete_lines:
            yield from _make_final_line(text)
        # A final carriage return may be the first half of a line end.
        head, separator, tail = remaining.rpartition(b"\r")
        if separator and tail:
            remaining = b"\r" + tail
            yield Line(_remove_movement(tail), is_final=False)
        elif separator:
            state = _find_last_state(head)
            remaining = b"\r" + state + b"\r"
            if state:
                yield Line(state, is_final=False)
        if len(remaining) > _MAX_LINE_BYTES:
            yield from _make_final_line(remaining)
            remaining = b""
        self._remaining = remaining

    def finish(self) -> Iterator[Line]:
        """Yield the remaining line, which has no line end."""
        remaining, self._remaining = self._remaining, b""
        if remaining:
            yield from _make_final_line(remaining)


def _make_final_line(text: bytes) -> Iterator[Line]:
    if text.endswith(b"\r") and b"\r" not in text[:-1]:
        text = text[:-1]
    if b"\r" not in text:
        yield Line(_remove_movement(text))
        return
    state = _find_last_state(text)
    if state:
        yield Line(state)


def _find_last_state(text: bytes) -> bytes:
    for part in reversed(text.split(b"\r")):
        state = _remove_movement(part)
        if state:
            return state if state.strip() else b""
    return b""


def _remove_movement(text: bytes) -> bytes:
    return _MOVEMENT.sub(b"", text).strip(b"\b")


class RewriteLimit:
    """Selects the states of rewritten lines, such as progress bars, that are shown.

    Args:
        interval_s: Seconds between two shown states of a line.
    """

    def __init__(self, interval_s: float) -> None:
        self._interval_s = interval_s
        self._shown_at: dict[tuple[int, str], float] = {}

    def should_show(self, rank: int, stream: str, line: Line) -> bool:
        """Return whether to show a line now. Final lines are always shown."""
        source, now = (rank, stream), time.monotonic()
        if line.is_final:
            self._shown_at.pop(source, None)
        elif now - self._shown_at.setdefault(source, now) < self._interval_s:
            return False
        else:
            self._shown_at[source] = now
        return True


class Pump:
    """Reads one stream of one worker to its end, and passes its lines on.

    Args:
        stream: The stream, which is closed at its end.
        rank: Rank of the worker.
        name: ``"stdout"`` or ``"stderr"``.
        on_line: Called with the rank, the name and each line.
        cutter: Splits the stream into lines.
    """

    def __init__(
        self,
        stream: IO[bytes],
        rank: int,
        name: str,
        on_line: Callable[[int, str, Line], None],
        cutter: Cutter,
    ) -> None:
        self._cutter = cutter
        self._stream = stream
        self._rank = rank
        self._name = name
        self._on_line = on_line
        self._waits_since: float | None = None
        self._thread = threading.Thread(
            target=self._read_stream, name=f"detcore-{name}-{rank}", daemon=True
        )
        self._thread.start()

    def _read_stream(self) -> None:
        cutter = self._cutter
        with self._stream:
            while True:
                self._waits_since = time.monotonic()
                data = os.read(self._stream.fileno(), _READ_BYTES)
                self._waits_since = None
                for line in cutter.feed(data) if data else cutter.finish():
                    self._on_line(self._rank, self._name, line)
                if not data:
                    return

    def join(self) -> None:
        """Wait until all output of an exited process is read."""
        start = time.monotonic()
        while self._thread.is_alive():
            self._thread.join(0.1)
            waits_since = self._waits_since
            if waits_since and time.monotonic() - max(waits_since, start) > _HELD_OPEN_S:
                return
