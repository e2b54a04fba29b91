"""Present experiments as values and drawings, for commands, reports and the server."""

from detcore.pages._chart_table import chart_table
from detcore.pages._format import format_bytes, format_duration, format_number, format_time
from detcore.pages._html import (
    CheckpointRow,
    Report,
    experiment_part,
    plot_page,
    report_page,
    trial_part,
)
from detcore.pages._png import write_png
from detcore.pages._records import (
    best_of,
    can_resume,
    describe_experiment,
    describe_state,
    describe_trials,
    duration_s,
    flatten,
    metric_value,
    searcher_metric,
    sort_key,
    summarize_config,
    took_s,
    trial_state,
)
from detcore.pages._scales import Axis, Scale, make_axis, make_scale
from detcore.pages._scatter import draw_scatters
from detcore.pages._svg import draw_chart, draw_parallel, legend, trial_classes
from detcore.pages._text import STYLE, cut, escape, fragment, page, table
from detcore.pages._view import Chart, Curve, ExperimentView, TrialView, read_view, thin

__all__ = [
    "STYLE",
    "Axis",
    "Chart",
    "CheckpointRow",
    "Curve",
    "ExperimentView",
    "Report",
    "Scale",
    "TrialView",
    "best_of",
    "can_resume",
    "chart_table",
    "cut",
    "describe_experiment",
    "describe_state",
    "describe_trials",
    "draw_chart",
    "draw_parallel",
    "draw_scatters",
    "duration_s",
    "escape",
    "experiment_part",
    "flatten",
    "format_bytes",
    "format_duration",
    "format_number",
    "format_time",
    "fragment",
    "legend",
    "make_axis",
    "make_scale",
    "metric_value",
    "page",
    "plot_page",
    "read_view",
    "report_page",
    "searcher_metric",
    "sort_key",
    "summarize_config",
    "table",
    "thin",
    "took_s",
    "trial_classes",
    "trial_part",
    "trial_state",
    "write_png",
]
