"""A line plot in the terminal."""

from __future__ import annotations

import math
from collections.abc import Sequence

from detcore.record_descriptions import format_number

_ROWS = 10


def draw_text_plot(points: Sequence[tuple[float, float]], *, width: int) -> list[str]:
    """Draw a line through points in ASCII, with the ends of both axes.

    Args:
        points: Pairs of x and y in the order of x; points that are not finite are omitted.
        width: Maximum number of characters per line, at least 30.

    Returns:
        Lines of text; empty if no point is finite.
    """
    finite = [(float(x), float(y)) for x, y in points if math.isfinite(x) and math.isfinite(y)]
    if not finite:
        return []
    ys = [y for _, y in finite]
    low, high = min(ys), max(ys)
    labels = {_ROWS // 2 - 1: format_number(low / 2 + high / 2)}
    if high > low:
        labels |= {0: format_number(high), _ROWS - 1: format_number(low)}
    margin = max(map(len, labels.values()))
    columns = max(30, width) - margin - 2
    left, right = finite[0][0], finite[-1][0]
    rows = [[" "] * columns for _ in range(_ROWS)]
    previous = None
    for x, y in finite:
        # Halves, because the difference of two large floats may be infinite.
        down = (high / 2 - y / 2) / (high / 2 - low / 2) if high > low else 0.45
        end = (
            round((x - left) / (right - left) * (columns - 1)) if right > left else 0,
            round(down * (_ROWS - 1)),
        )
        start = previous or end
        steps = max(abs(end[0] - start[0]), abs(end[1] - start[1]), 1)
        for step in range(steps + 1):
            column, row = (
                round(a + (b - a) * step / steps) for a, b in zip(start, end, strict=True)
            )
            rows[row][column] = "*"
        previous = end
    lines = [
        f"{labels.get(index, ''):>{margin}} {'|+'[index in labels]}{''.join(row)}".rstrip()
        for index, row in enumerate(rows)
    ]
    first, last = (f"{x:.12g}" for x in (left, right))
    ends = f"{first}{last:>{columns - len(first)}}" if right > left else first
    return [*lines, f"{'':{margin}} +{'-' * columns}", f"{'':{margin}}  {ends}".rstrip()]
