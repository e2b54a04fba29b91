"""Text from trials and records, as a terminal may show it."""

from __future__ import annotations

import re

__all__ = ["printable"]

_COLOUR = re.compile(r"\x1b\[[0-9;:]*m")
# Control characters but for tabs and line ends, what changes the direction of the text around it,
# and halves of surrogate pairs, which no terminal's encoding has.
_CONTROL = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)


def printable(text: str, *, keep_colours: bool = False) -> str:
    r"""Return a text that cannot drive the reader's terminal.

    Control characters become escapes such as ``\x1b``: they could rewrite the screen, change the
    window's title, or write to the clipboard. Colours are removed.

    Args:
        text: Output of a trial, or a name that a user chose.
        keep_colours: Whether colours stay as they are.
    """
    if text.isprintable():
        return text
    if not keep_colours:
        return _CONTROL.sub(_escaped, _COLOUR.sub("", text))
    parts, end = [], 0
    for colour in _COLOUR.finditer(text):
        parts += [_CONTROL.sub(_escaped, text[end : colour.start()]), colour[0]]
        end = colour.end()
    return "".join([*parts, _CONTROL.sub(_escaped, text[end:])])


def _escaped(found: re.Match[str]) -> str:
    return found[0].encode("unicode_escape").decode("ascii")
