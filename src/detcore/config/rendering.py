"""Print diagnostics in the style of a compiler."""

from __future__ import annotations

import textwrap
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from typing import Literal

from detcore.config.source_text import Diagnostic, Label, Source, Span
from detcore.masking import hide_lines

Role = Literal["place", "error", "message", "gutter", "primary", "secondary", "help"]
Style = Callable[[str, Role], str]
_Labelled = tuple[Label, Role]

_WIDTH = 100
_LONG = 160  # longer lines are cut to the part around the marked positions
_TAB = 4


def no_style(text: str, role: Role) -> str:
    """Return a piece of text without colours."""
    return text


def render(
    diagnostics: Iterable[Diagnostic], *, secrets: Iterable[Span] = (), style: Style = no_style
) -> str:
    """Return a report: every mistake with its line, exact position, and suggestion.

    Args:
        diagnostics: The mistakes, in the order to print.
        secrets: Spans to mask, in addition to values whose names look secret.
        style: Colours a piece of text; called with the piece and its role.
    """
    printer = _Printer(style, list(secrets))
    return "\n\n".join(printer.block(diagnostic) for diagnostic in diagnostics)


class _Printer:
    def __init__(self, style: Style, secrets: list[Span]) -> None:
        self._style = style
        self._secrets = secrets
        self._hidden: dict[Source, list[str]] = {}

    def block(self, found: Diagnostic) -> str:
        here = found.primary.span.source
        place = f"{found.source_name}:"
        if here.lines:  # empty for a file that cannot be read
            place += f"{found.line}:{found.column}:"
        head = [
            f"{self._style(place, 'place')} {self._style('error:', 'error')} "
            f"{self._style(found.message, 'message')}"
        ]
        labels: list[_Labelled] = [(found.primary, "primary")]
        labels += [(label, "secondary") for label in found.secondary]
        margin = len(str(max(label.span.line + 1 for label, _ in labels)))
        bar = self._style(" " * margin + " |", "gutter")
        lines = [bar, *self._excerpt(here, labels, margin)] if here.lines else []
        for source in dict.fromkeys(label.span.source for label, _ in labels):
            if source is not here:
                first = next(label.span for label, _ in labels if label.span.source is source)
                where = f"{' ' * margin} ::: {source.name}:{first.line + 1}:{first.column + 1}"
                lines += [self._style(where, "gutter"), *self._excerpt(source, labels, margin)]
        if found.help and lines:
            lines.append(bar)
        for text in found.help:
            lines += self._help(text, margin)
        return "\n".join(head + lines)

    def _help(self, text: str, margin: int) -> list[str]:
        indent = " " * (margin + 3)
        wrapped = textwrap.wrap(text, _WIDTH, initial_indent=indent, subsequent_indent=indent)
        mark = self._style(" " * margin + " = ", "gutter")
        first = wrapped[0][len(indent) :] if wrapped else ""
        return [mark + self._style(first, "help"), *(self._style(w, "help") for w in wrapped[1:])]

    def _excerpt(self, source: Source, labels: Sequence[_Labelled], margin: int) -> list[str]:
        mine = [item for item in labels if item[0].span.source is source]
        mine.sort(key=lambda item: (item[0].span.line, item[0].span.column))
        lines: list[str] = []
        gutter = self._style(" " * margin + " |", "gutter")
        last: int | None = None
        for number, group in groupby(mine, key=lambda item: item[0].span.line):
            here = list(group)
            text = self._text(source, number)
            # The first visible character: not 0 if the line is very long.
            start = max(0, here[0][0].span.column - 40) if len(text) > _LONG else 0
            if last is not None and number > last + 1:
                lines.append(self._style("." * max(3, margin), "gutter"))
            lines.append(self._line(source, number, margin, start))
            lines += [f"{gutter} {self._mark(text, label, role, start)}" for label, role in here]
            last = number
        return lines

    def _mark(self, text: str, label: Label, role: Role, start: int) -> str:
        """Return the row below a line: an underline, and the text of the label behind it."""
        first = label.span.column
        width = _width(text[first : first + min(label.span.width, _WIDTH)].rstrip()) or 1
        underline = ("^" if role == "primary" else "-") * width
        indent = " " * _width(text[start:first])
        return indent + self._style(f"{underline} {label.text}".rstrip(), role)

    def _text(self, source: Source, number: int) -> str:
        if source not in self._hidden:
            spans = [
                (span.line, span.column, span.end_line, span.end_column)
                for span in self._secrets
                if span.source is source
            ]
            self._hidden[source] = hide_lines(source.lines, spans)
        hidden = self._hidden[source]
        return hidden[number] if number < len(hidden) else ""

    def _line(self, source: Source, number: int, margin: int, start: int = 0) -> str:
        line = self._text(source, number)
        shown = line[start : start + _LONG]
        if start:
            shown = "…" + shown[1:]
        if start + _LONG < len(line):
            shown = shown[:-1] + "…"
        text = "".join(_shown(char) for char in shown).rstrip()
        gutter = self._style(f"{number + 1:>{margin}} |", "gutter")
        return f"{gutter} {text}".rstrip()


def _shown(char: str) -> str:
    if char == "\t":
        return " " * _TAB
    return "\N{REPLACEMENT CHARACTER}" if unicodedata.category(char) in ("Cc", "Cs") else char


def _width(text: str) -> int:
    """Return the number of terminal columns of a text."""
    from rich.cells import cell_len

    return cell_len("".join(map(_shown, text)))
