"""Print diagnostics the way a compiler does."""

from __future__ import annotations

import textwrap
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from typing import Literal

from detcore._secrets import hide_lines
from detcore.config._source import Diagnostic, Label, Source, Span

__all__ = ["Role", "Style", "no_style", "render"]

Role = Literal["place", "error", "message", "gutter", "primary", "secondary", "help"]
Style = Callable[[str, Role], str]

_WIDTH = 100
_LONG = 160  # longer lines are cut to the part around the places in them
_TAB = 4


def no_style(text: str, role: Role) -> str:
    """Leave a piece of text as it is."""
    return text


def render(
    diagnostics: Iterable[Diagnostic], *, secrets: Iterable[Span] = (), style: Style = no_style
) -> str:
    """Return a report: every mistake with its line, the exact place, and what was meant.

    Args:
        diagnostics: What is wrong, in the order to print.
        secrets: Places that are shown as stars, besides those that look secret by their name.
        style: Colours a piece of text; called with the piece and its role.
    """
    printer = _Printer(style, list(secrets))
    return "\n\n".join(printer.block(diagnostic) for diagnostic in diagnostics)


class _Printer:
    def __init__(self, style: Style, secrets: list[Span]) -> None:
        self._style = style
        self._secrets = secrets
        self._hidden: dict[int, list[str]] = {}

    def block(self, found: Diagnostic) -> str:
        place = f"{found.source_name}:"
        if found.primary.span.source.lines:  # a file that cannot be read has no lines
            place += f"{found.line}:{found.column}:"
        head = [
            f"{self._style(place, 'place')} {self._style('error:', 'error')} "
            f"{self._style(found.message, 'message')}"
        ]
        labels = [(found.primary, True), *((label, False) for label in found.secondary)]
        here = found.primary.span.source
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

    def _excerpt(
        self, source: Source, labels: Sequence[tuple[Label, bool]], margin: int
    ) -> list[str]:
        mine = [item for item in labels if item[0].span.source is source]
        mine.sort(key=lambda item: (item[0].span.line, item[0].span.column))
        lines: list[str] = []
        last: int | None = None
        for number, group in groupby(mine, key=lambda item: item[0].span.line):
            here = list(group)
            start = self._start(source, number, here)
            if last is not None and number > last + 1:
                between = self._line(source, last + 1, margin) if number == last + 2 else None
                lines.append(between or self._style("." * max(3, margin), "gutter"))
            lines.append(self._line(source, number, margin, start))
            lines += self._marks(source, number, here, margin, start)
            last = number
        return lines

    def _text(self, source: Source, number: int) -> str:
        if id(source) not in self._hidden:
            spans = [
                (span.line, span.column, span.end_line, span.end_column)
                for span in self._secrets
                if span.source is source
            ]
            self._hidden[id(source)] = hide_lines(source.lines, spans)
        hidden = self._hidden[id(source)]
        return hidden[number] if number < len(hidden) else ""

    def _start(self, source: Source, number: int, labels: list[tuple[Label, bool]]) -> int:
        """Return the first character shown of a line; not 0 if the line is very long."""
        first = min(label.span.column for label, _ in labels)
        return max(0, first - 40) if len(self._text(source, number)) > _LONG else 0

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

    def _marks(
        self,
        source: Source,
        number: int,
        labels: list[tuple[Label, bool]],
        margin: int,
        start: int,
    ) -> list[str]:
        """Return the lines below a line: all underlines, then the texts from right to left."""
        text = self._text(source, number)
        gutter = self._style(" " * margin + " |", "gutter")
        placed = [
            (_width(text[start : label.span.column]), label, is_primary)
            for label, is_primary in labels
        ]
        underline = _Row()
        for column, label, is_primary in placed:
            span = label.span
            width = _width(text[span.column : span.column + min(span.width, _WIDTH)].rstrip()) or 1
            role: Role = "primary" if is_primary else "secondary"
            underline.put(column, ("^" if is_primary else "-") * width, role)
        _, last, is_primary = placed[-1]
        underline.add(f" {last.text}", "primary" if is_primary else "secondary")
        rows = [underline]
        waiting = [item for item in placed[:-1] if item[1].text]
        while waiting:
            column, label, is_primary = waiting.pop()
            row = _Row()
            for other, _, other_primary in waiting:
                row.put(other, "|", "primary" if other_primary else "secondary")
            row.put(column, label.text, "primary" if is_primary else "secondary")
            rows.append(row)
        return [f"{gutter} {row.print(self._style)}".rstrip() for row in rows]


class _Row:
    """A line put together from pieces at columns."""

    def __init__(self) -> None:
        self._pieces: list[tuple[int, str, Role]] = []

    def put(self, column: int, text: str, role: Role) -> None:
        self._pieces.append((column, text, role))

    def add(self, text: str, role: Role) -> None:
        end = max(column + len(piece) for column, piece, _ in self._pieces)
        self._pieces.append((end, text, role))

    def print(self, style: Style) -> str:
        printed, position = "", 0
        for column, text, role in sorted(self._pieces, key=lambda piece: piece[0]):
            if column < position:  # one place inside another
                text = text[position - column :]
                column = position
            printed += " " * (column - position) + (style(text, role) if text.strip() else text)
            position = column + len(text)
        return printed


def _shown(char: str) -> str:
    if char == "\t":
        return " " * _TAB
    return "\N{REPLACEMENT CHARACTER}" if unicodedata.category(char) in ("Cc", "Cs") else char


def _width(text: str) -> int:
    """Return how many columns a terminal gives a text."""
    total = 0
    for char in text:
        if char == "\t":
            total += _TAB
        elif unicodedata.combining(char) or unicodedata.category(char) == "Cf":
            continue
        else:
            total += 2 if unicodedata.east_asian_width(char) in "WF" else 1
    return total
