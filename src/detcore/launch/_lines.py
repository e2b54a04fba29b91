"""Whole lines from the output of a process, whatever the pieces it arrives in."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from typing import Protocol

__all__ = ["Cutter", "Line", "LineCutter"]

_MAX_LINE_BYTES = 1 << 20
# Cursor movements mean nothing where other ranks' lines come in between; colours (..m) stay.
_MOVEMENT = re.compile(rb"\x1b\[[0-9;?]*[A-LN-Za-ln-z]")


@dataclasses.dataclass(frozen=True, slots=True)
class Line:
    """A line without its end.

    Attributes:
        text: Its content.
        is_final: False for a state of a line that is still being rewritten, as progress bars are.
    """

    text: bytes
    is_final: bool = True


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
