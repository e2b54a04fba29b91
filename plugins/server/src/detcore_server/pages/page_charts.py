"""Charts of a page, each with a table of numbers and data for the script."""

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
    """Template values of a chart.

    Attributes:
        title: The metric and its kind.
        summary: Summary of the numbers of trials and steps.
        table: Table of the chart's numbers, which is available without JavaScript.
        about: JSON for the script: kind, metric, and the id, colour class and best flag of each
            trial. For groups: label, colour class and trial ids.
    """

    title: str
    summary: str
    table: Markup
    about: str


def page_charts(view: ExperimentView, *, groups: Sequence[Group] = ()) -> list[PageChart]:
    """Return the charts of a view. The first chart has the width of the page.

    Args:
        view: The experiment.
        groups: Groups of trials that the script draws as bands. Only the first groups have colours.
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
        title, summary = describe_chart(view, chart)
        table = chart_table(view, chart)
        charts.append(PageChart(title=title, summary=summary, table=table, about=json.dumps(about)))
    return charts
