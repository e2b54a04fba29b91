"""The charts of a page: a drawing with a table behind it, and what the script needs to know."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from detcore_report import chart_table, draw_chart, trial_classes
from detcore_server._page._render import svg

if TYPE_CHECKING:
    from detcore_report import ExperimentView

__all__ = ["page_charts"]


def page_charts(view: ExperimentView, *, points: int) -> list[dict[str, Any]]:
    """Return the charts of a view for the template, the first as wide as the page.

    Args:
        view: The experiment.
        points: Maximum number of points of each curve of a drawing.
    """
    classes = {trial: names.split() for trial, names in trial_classes(view).items()}
    return [
        {
            "drawing": svg(
                draw_chart(view, chart, number=number, points=points, is_wide=number == 0)
            ),
            "table": svg(chart_table(view, chart)),
            # As the script reads it: id, colour, and whether it is the best.
            "about": json.dumps(
                {
                    "experiment": view.record.id,
                    "kind": chart.kind,
                    "metric": chart.metric,
                    "trials": [
                        [curve.trial_id, classes[curve.trial_id][1],
                         "best" in classes[curve.trial_id]]
                        for curve in chart.curves
                        if curve.points and curve.trial_id in classes
                    ],
                }
            ),
        }
        for number, chart in enumerate(view.charts)
    ]  # fmt: skip
