"""Charts, reports and plots of detcore's records.

Names are imported on first use, so that finding the plugin stays cheap.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from detcore.lazy import lazy_names

if TYPE_CHECKING:
    from detcore_report.activity import Activity, read_activities, time_left
    from detcore_report.charts.importance import group_values, importance_table
    from detcore_report.charts.matplotlib_charts import (
        chart_table,
        describe_chart,
        draw_parallel,
        draw_scatters,
        legend,
        trial_classes,
    )
    from detcore_report.charts.text_plot import draw_text_plot
    from detcore_report.experiment_view import (
        Chart,
        Curve,
        ExperimentView,
        TrialView,
        read_view,
        select_trials,
    )
    from detcore_report.notebooks.cells import module_from_cells
    from detcore_report.notebooks.notebook_html import notebook_html
    from detcore_report.pages.page_parts import STYLE, cut, escape, make_templates, page, table

__version__ = "0.1.0"

__all__ = [
    "STYLE",
    "Activity",
    "Chart",
    "Curve",
    "ExperimentView",
    "TrialView",
    "chart_table",
    "cut",
    "describe_chart",
    "draw_parallel",
    "draw_scatters",
    "draw_text_plot",
    "escape",
    "group_values",
    "importance_table",
    "legend",
    "make_templates",
    "module_from_cells",
    "notebook_html",
    "page",
    "read_activities",
    "read_view",
    "select_trials",
    "table",
    "time_left",
    "trial_classes",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "activity": "Activity read_activities time_left",
        "charts.importance": "group_values importance_table",
        "charts.matplotlib_charts": "chart_table describe_chart draw_parallel draw_scatters "
        "legend trial_classes",
        "charts.text_plot": "draw_text_plot",
        "experiment_view": "Chart Curve ExperimentView TrialView read_view select_trials",
        "notebooks.cells": "module_from_cells",
        "notebooks.notebook_html": "notebook_html",
        "pages.page_parts": "STYLE cut escape make_templates page table",
    },
)
