"""Charts, reports and plots of detcore's records.

Names are imported on first use: finding the plugin must not cost what using it costs.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from detcore_report._activity import Activity, ProcessUsage, read_activities, time_left
    from detcore_report._chart_table import chart_table
    from detcore_report._commands import plot_experiment
    from detcore_report._html import experiment_part, trial_part
    from detcore_report._importance import importance_table
    from detcore_report._scatter import draw_scatters
    from detcore_report._svg import draw_chart, draw_parallel, legend, trial_classes
    from detcore_report._text_plot import draw_text_plot
    from detcore_report._view import Chart, Curve, ExperimentView, TrialView, read_view

__version__ = "0.1.0"

__all__ = [
    "Activity",
    "Chart",
    "Curve",
    "ExperimentView",
    "ProcessUsage",
    "TrialView",
    "chart_table",
    "draw_chart",
    "draw_parallel",
    "draw_scatters",
    "draw_text_plot",
    "experiment_part",
    "importance_table",
    "legend",
    "plot_experiment",
    "read_activities",
    "read_view",
    "time_left",
    "trial_classes",
    "trial_part",
]

_HOMES = {
    "Activity": "_activity",
    "Chart": "_view",
    "Curve": "_view",
    "ExperimentView": "_view",
    "ProcessUsage": "_activity",
    "TrialView": "_view",
    "chart_table": "_chart_table",
    "draw_chart": "_svg",
    "draw_parallel": "_svg",
    "draw_scatters": "_scatter",
    "draw_text_plot": "_text_plot",
    "experiment_part": "_html",
    "importance_table": "_importance",
    "legend": "_svg",
    "plot_experiment": "_commands",
    "read_activities": "_activity",
    "read_view": "_view",
    "time_left": "_activity",
    "trial_classes": "_svg",
    "trial_part": "_html",
}


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'detcore_report' has no attribute {name!r}")
    return getattr(importlib.import_module(f"detcore_report.{home}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
