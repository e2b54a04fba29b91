"""The charts of a page: each a table of its numbers, and data for the script that draws it."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

from detcore_report import chart_table, describe_chart, trial_classes

if TYPE_CHECKING:
    from markupsafe import Markup

    from detcore_report import ExperimentView
    from detcore_server.pages.trial_groups import Group


@dataclasses.dataclass(frozen=True, slots=True)
class PageChart:
    """A chart for the template.

    Attributes:
        title: The metric and its kind.
        told: How many trials and steps are in it.
        table: The numbers of the chart, which are there without JavaScript, too.
        about: JSON for the script: kind, metric, and of each trial its id, the class of its colour
            and whether it is the best; of groups of trials the label, the class and the ids.
    """

    title: str
    told: str
    table: Markup
    about: str


def page_charts(view: ExperimentView, *, groups: Sequence[Group] = ()) -> list[PageChart]:
    """Return the charts of a view, the first as wide as the page.

    Args:
        view: The experiment.
        groups: Groups of trials that the script draws as bands; only the first have colours.
    """
    classes = {trial: names.split() for trial, names in trial_classes(view).items()}
    charts = []
    for chart in view.charts:
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
        title, told = describe_chart(view, chart)
        table = chart_table(view, chart)
        charts.append(PageChart(title=title, told=told, table=table, about=json.dumps(about)))
    return charts
