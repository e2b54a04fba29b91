"""The charts of a page: each a drawing, a table of its numbers, and data for the script."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

from detcore_report import chart_table, draw_chart, trial_classes
from detcore_server._page._render import svg

if TYPE_CHECKING:
    from markupsafe import Markup

    from detcore_report import ExperimentView
    from detcore_server._page._groups import Group


@dataclasses.dataclass(frozen=True, slots=True)
class PageChart:
    """A chart for the template.

    Attributes:
        drawing: The figure that is shown without JavaScript, or until the script has drawn its own.
        table: The numbers of the chart.
        about: JSON for the script: kind, metric, and of each trial its id, the class of its colour
            and whether it is the best; of groups of trials the label, the class and the ids.
    """

    drawing: Markup
    table: Markup
    about: str


def page_charts(
    view: ExperimentView, *, points: int, groups: Sequence[Group] = ()
) -> list[PageChart]:
    """Return the charts of a view, the first as wide as the page.

    Args:
        view: The experiment.
        points: Maximum number of points of each curve of a drawing.
        groups: Groups of trials that the script draws as bands; only the first have colours.
    """
    classes = {trial: names.split() for trial, names in trial_classes(view).items()}
    charts = []
    for number, chart in enumerate(view.charts):
        is_wide = number == 0
        trials = [
            [curve.trial_id, classes[curve.trial_id][1], "best" in classes[curve.trial_id]]
            for curve in chart.curves
            if curve.points and curve.trial_id in classes
        ]
        about = {
            "kind": chart.kind, "metric": chart.metric, "trials": trials,
            "groups": [
                [group.label, group.colour, [trial.id for trial in group.trials]]
                for group in groups
                if group.colour != "none"
            ],
        }  # fmt: skip
        charts.append(
            PageChart(
                drawing=svg(draw_chart(view, chart, number=number, points=points, is_wide=is_wide)),
                table=svg(chart_table(view, chart)),
                about=json.dumps(about),
            )
        )
    return charts
