"""Charts, reports and plots of detcore's records.

Names are imported on first use: finding the plugin must not cost what using it costs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from detcore.lazy import lazy_names

if TYPE_CHECKING:
    from detcore_report._activity import Activity, ProcessUsage, read_activities, time_left
    from detcore_report._cells import module_from_cells
    from detcore_report._charts import (
        chart_table,
        describe_chart,
        draw_parallel,
        draw_scatters,
        legend,
        trial_classes,
    )
    from detcore_report._html import experiment_part, trial_part
    from detcore_report._importance import importance_table
    from detcore_report._notebook import notebook_html
    from detcore_report._parts import STYLE, cut, escape, fragment, page, table
    from detcore_report._text_plot import draw_text_plot
    from detcore_report._view import (
        Chart,
        Curve,
        ExperimentView,
        TrialView,
        read_view,
        select_trials,
    )

__version__ = "0.1.0"

__all__ = [
    "STYLE",
    "Activity",
    "Chart",
    "Curve",
    "ExperimentView",
    "ProcessUsage",
    "TrialView",
    "chart_table",
    "cut",
    "describe_chart",
    "draw_parallel",
    "draw_scatters",
    "draw_text_plot",
    "escape",
    "experiment_part",
    "fragment",
    "importance_table",
    "legend",
    "module_from_cells",
    "notebook_html",
    "page",
    "read_activities",
    "read_view",
    "select_trials",
    "table",
    "time_left",
    "trial_classes",
    "trial_part",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "_activity": "Activity ProcessUsage read_activities time_left",
        "_cells": "module_from_cells",
        "_charts": "chart_table describe_chart draw_parallel draw_scatters legend trial_classes",
        "_html": "experiment_part trial_part",
        "_importance": "importance_table",
        "_notebook": "notebook_html",
        "_parts": "STYLE cut escape fragment page table",
        "_text_plot": "draw_text_plot",
        "_view": "Chart Curve ExperimentView TrialView read_view select_trials",
    },
)
