"""Show a chart as a table, for users who cannot see it or want the numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from detcore.describe import format_number
from detcore_report._parts import cut, table

if TYPE_CHECKING:
    from detcore_report._view import Chart, Curve, ExperimentView


def chart_table(view: ExperimentView, chart: Chart) -> str:
    """Return the curves of a chart as rows: the ends of each, and its extremes."""
    curves = {curve.trial_id: curve for curve in chart.curves}
    rows = [
        ("", [str(trial.id), *_cells(curves[trial.id])])
        for trial in view.trials
        if trial.id in curves and (curves[trial.id].points or curves[trial.id].num_not_finite)
    ]
    return table(
        f"{cut(chart.metric, 80)} ({chart.kind}) of each trial, the best trial first",
        ["trial", "first", "at step", "smallest", "at step", "largest", "at step", "last",
         "at step", "not finite"],
        rows,
        right=range(10),
        is_tall=len(rows) > 20,
    )  # fmt: skip


def _cells(curve: Curve) -> list[str]:
    points = curve.points
    if not points:
        return ["-"] * 8 + [str(curve.num_not_finite)]
    lowest = min(points, key=lambda point: point[1])
    highest = max(points, key=lambda point: point[1])
    cells = []
    for step, value in (points[0], lowest, highest, points[-1]):
        cells += [format_number(value), str(step)]
    return [*cells, str(curve.num_not_finite)]
