"""Describe records in words and tables, for commands, notebooks, reports and the server."""

from detcore.describe._format import format_bytes, format_duration, format_number, format_time
from detcore.describe._records import (
    best_of,
    can_resume,
    describe_experiment,
    describe_state,
    describe_trials,
    duration_s,
    flatten,
    is_loss,
    metric_value,
    searcher_metric,
    sort_key,
    summarize_config,
    took_s,
    trial_state,
    visible_config,
)
from detcore.describe._redaction import Redactor
from detcore.describe._text import STYLE, cut, escape, fragment, table

__all__ = [
    "STYLE",
    "Redactor",
    "best_of",
    "can_resume",
    "cut",
    "describe_experiment",
    "describe_state",
    "describe_trials",
    "duration_s",
    "escape",
    "flatten",
    "format_bytes",
    "format_duration",
    "format_number",
    "format_time",
    "fragment",
    "is_loss",
    "metric_value",
    "searcher_metric",
    "sort_key",
    "summarize_config",
    "table",
    "took_s",
    "trial_state",
    "visible_config",
]
