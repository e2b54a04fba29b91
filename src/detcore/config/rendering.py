"""Print diagnostics in the style of a compiler."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Mapping, Sequence

from detcore.config.source_text import Diagnostic, Label, Source, Span
from detcore.masking import hide_lines

_WIDTH = 100
_LONG = 160  # longer lines are reduced to the part around the marked positions
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
_Marked = tuple[Label, str]  # and the character that underlines it


def render_report(diagnostics: Sequence[Diagnostic], *, secrets: Iterable[Span] = ()) -> str:
    """Return a report: every mistake with its line, exact position, and suggestion.

    Args:
        diagnostics: The mistakes in the order to print them.
        secrets: Spans to mask, in addition to values with secret names.
    """
    spans: dict[Source, list[tuple[int, int, int, int]]] = {}
    for item in diagnostics:
        for label in (item.primary, *item.secondary):
            spans.setdefault(label.span.source, [])
    for span in secrets:
        where = (span.line, span.column, span.end_line, span.end_column)
        spans.setdefault(span.source, []).append(where)
    lines = {source: [*hide_lines(source.lines, spans[source]), ""] for source in spans}
    return "\n\n".join(_render_block(item, lines) for item in diagnostics)


def _render_block(found: Diagnostic, shown: Mapping[Source, Sequence[str]]) -> str:
    here = found.primary.span.source
    place = f"{found.source_name}:{found.line}:{found.column}: "
    labels = [(found.primary, "^"), *((label, "-") for label in found.secondary)]
    margin = " " * len(str(max(label.span.line + 1 for label, _ in labels)))
    # The message about an unreadable file names the file.
    rows = [_clean_text(f"{place if here.lines else ''}error: {found.message}")]
    if here.lines:
        rows.append(f"{margin} |")
        for source in dict.fromkeys(label.span.source for label, _ in labels):
            marked = [item for item in labels if item[0].span.source is source]
            if source is not here:
                span = marked[0][0].span
                rows.append(f"{margin} ::: {source.name}:{span.line + 1}:{span.column + 1}")
            rows += _render_excerpt(shown[source], marked, margin)
        if found.help:
            rows.append(f"{margin} |")
    for text in found.help:
        rows += textwrap.wrap(
            _clean_text(text),
            _WIDTH,
            initial_indent=f"{margin} = ",
            subsequent_indent=f"{margin}   ",
        )
    return "\n".join(rows)


def _render_excerpt(lines: Sequence[str], labels: Sequence[_Marked], margin: str) -> list[str]:
    """Return the lines with labels, each with underlines and texts below it."""
    rows: list[str] = []
    last, start = -1, 0
    for label, mark in sorted(labels, key=lambda item: (item[0].span.line, item[0].span.column)):
        number, column = label.span.line, label.span.column
        text = lines[min(number, len(lines) - 1)]
        if number != last:
            if last >= 0 and number > last + 1:
                rows.append("...")
            start = max(0, column - 40) if len(text) > _LONG else 0
            excerpt = _clean_text(text[start : start + _LONG])
            rows.append(f"{number + 1:>{len(margin)}} | {excerpt}".rstrip())
            last = number
        width = _measure_cells(text[column : column + min(label.span.width, _WIDTH)].rstrip()) or 1
        underline = " " * _measure_cells(text[start:column]) + mark * width
        rows.append(f"{margin} | {underline} {label.text}".rstrip())
    return rows


def _clean_text(text: str) -> str:
    return _CONTROL.sub("\N{REPLACEMENT CHARACTER}", text.replace("\t", "    "))


def _measure_cells(text: str) -> int:
    """Return the number of terminal columns of a text."""
    from rich.cells import cell_len

    return cell_len(_clean_text(text))
