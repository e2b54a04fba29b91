"""Edit text in spans, decoded so that encoding restores the same bytes."""

from __future__ import annotations

import bisect
import codecs
import dataclasses
import io
import re
import tokenize
from collections.abc import Iterable

_LINE_END = re.compile(r"\r\n|\r|\n")


class UnreadableError(ValueError):
    """A file that cannot be decoded, or whose text would encode to other bytes."""


@dataclasses.dataclass(frozen=True, slots=True, order=True)
class Edit:
    """A span, counted in characters, and its replacement."""

    start: int
    end: int
    new: str


def decode(content: bytes, *, is_python: bool) -> tuple[str, str]:
    """Return a file's text and its encoding.

    Args:
        content: The file's bytes.
        is_python: Whether a coding cookie applies, as in Python; otherwise the file is UTF-8.

    Raises:
        UnreadableError: If it cannot be decoded without loss.
    """
    encoding = "utf-8-sig" if content.startswith(codecs.BOM_UTF8) else "utf-8"
    try:
        if is_python:
            encoding, _ = tokenize.detect_encoding(io.BytesIO(content).readline)
        text = content.decode(encoding)
        is_whole = text.encode(encoding) == content
    except (SyntaxError, UnicodeError, LookupError) as error:
        raise UnreadableError(f"it cannot be decoded: {error}") from error
    if not is_whole:
        raise UnreadableError(f"decoding and encoding it as {encoding} gives other bytes")
    return text, encoding


class Text:
    """A text with its lines, as Python counts them.

    Args:
        text: The text, with any kind of line ends.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self._starts = [0, *(match.end() for match in _LINE_END.finditer(text))]

    def place(self, offset: int) -> tuple[int, int]:
        """Return line and column of an offset, both from 1, in characters."""
        index = bisect.bisect_right(self._starts, offset) - 1
        return index + 1, offset - self._starts[index] + 1

    def apply(self, edits: Iterable[Edit]) -> str:
        """Return the text with the spans replaced; equal edits count once.

        Raises:
            ValueError: If two spans overlap.
        """
        parts = []
        at = 0
        for edit in sorted(set(edits)):
            if edit.start < at:
                raise ValueError(f"two changes of the same text, at {self.place(edit.start)}")
            parts += [self.text[at : edit.start], edit.new]
            at = edit.end
        return "".join([*parts, self.text[at:]])
