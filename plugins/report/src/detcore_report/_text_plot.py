"""A line plot in the terminal."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence

from detcore.describe import format_number

_PLOT_ROWS = 10
# Bit of each dot of a braille character, by row (top to bottom) and column.
_BRAILLE = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))


def draw_text_plot(
    points: Sequence[tuple[float, float]], *, width: int, unicode: bool | None = None
) -> list[str]:
    """Draw a line through points, with axes and their ends labelled.

    Args:
        points: x and y, in the order of x; points that are not finite are left out.
        width: Characters in a line, at most; at least 30 are used.
        unicode: Braille dots (True), plain ASCII (False), or what standard output can show (None).

    Returns:
        Lines of text; none if no point is finite.
    """
    finite = [(x, y) for x, y in points if math.isfinite(x) and math.isfinite(y)]
    if not finite:
        return []
    if unicode is None:
        unicode = _can_show_braille()
    ys = [y for _, y in finite]
    low, high = min(ys), max(ys)
    labels = [format_number(float(y)) for y in (high, low / 2 + high / 2, low)]
    margin = max(len(label) for label in labels)
    columns = max(30, width) - margin - 2
    dots = _trace(finite, low, high, columns=columns, fine=unicode)
    body = _braille_rows(dots, columns) if unicode else _ascii_rows(dots, columns)
    dots_in_row = 4 if unicode else 1
    middle = round((_PLOT_ROWS * dots_in_row - 1) / 2) // dots_in_row
    at = {middle: labels[1]}
    if high > low:
        at |= {0: labels[0], _PLOT_ROWS - 1: labels[2]}
    tick, bar, corner, dash = ("┤", "│", "└", "─") if unicode else ("+", "|", "+", "-")
    lines = [
        f"{at.get(row, '').rjust(margin)} {tick if row in at else bar}{text}".rstrip()
        for row, text in enumerate(body)
    ]
    lines.append(f"{'':{margin}} {corner}{dash * columns}")
    first, last = format_axis(finite[0][0]), format_axis(finite[-1][0])
    gap = columns - len(first) - len(last)
    ends = first + (" " * gap + last if finite[-1][0] > finite[0][0] and gap > 0 else "")
    lines.append(f"{'':{margin}}  {ends}".rstrip())
    return lines


def format_axis(value: float) -> str:
    """Return an end of the x axis, whole numbers without a point."""
    return str(int(value)) if float(value).is_integer() else format_number(float(value))


def _can_show_braille() -> bool:
    encoding = getattr(sys.stdout, "encoding", None) or "ascii"
    try:
        "⣿│".encode(encoding)
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def _trace(
    points: Sequence[tuple[float, float]], low: float, high: float, *, columns: int, fine: bool
) -> set[tuple[int, int]]:
    """Return the dots of a line: (column, row), rows from the top."""
    across, down = (2 * columns, 4 * _PLOT_ROWS) if fine else (columns, _PLOT_ROWS)
    left, right = points[0][0], points[-1][0]
    # Halves, because the difference of two large floats may be infinite.
    span_x, span_y = right / 2 - left / 2, high / 2 - low / 2

    def place(x: float, y: float) -> tuple[int, int]:
        column = 0 if span_x == 0 else round((x / 2 - left / 2) / span_x * (across - 1))
        share = 0.5 if span_y == 0 else (high / 2 - y / 2) / span_y
        return column, round(share * (down - 1))

    dots: set[tuple[int, int]] = set()
    before: tuple[int, int] | None = None
    for point in points:
        here = place(*point)
        dots.update(_segment(before or here, here))
        before = here
    return dots


def _segment(start: tuple[int, int], end: tuple[int, int]) -> list[tuple[int, int]]:
    steps = max(abs(end[0] - start[0]), abs(end[1] - start[1]))
    if steps == 0:
        return [end]
    return [
        (
            round(start[0] + (end[0] - start[0]) * step / steps),
            round(start[1] + (end[1] - start[1]) * step / steps),
        )
        for step in range(steps + 1)
    ]


def _braille_rows(dots: set[tuple[int, int]], columns: int) -> list[str]:
    cells = [[0] * columns for _ in range(_PLOT_ROWS)]
    for x, y in dots:
        cells[y // 4][x // 2] |= _BRAILLE[y % 4][x % 2]
    return ["".join(chr(0x2800 + bits) if bits else " " for bits in row) for row in cells]


def _ascii_rows(dots: set[tuple[int, int]], columns: int) -> list[str]:
    cells = [[" "] * columns for _ in range(_PLOT_ROWS)]
    for x, y in dots:
        cells[y][x] = "*"
    return ["".join(row) for row in cells]
