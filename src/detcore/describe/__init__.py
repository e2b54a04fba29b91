"""Describe records in words and tables, for commands, notebooks, reports and the server."""

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
from detcore.describe._text import format_bytes, format_duration, format_number, format_time

__all__ = [
    "Redactor",
    "best_of",
    "can_resume",
    "describe_experiment",
    "describe_state",
    "describe_trials",
    "duration_s",
    "flatten",
    "format_bytes",
    "format_duration",
    "format_number",
    "format_time",
    "is_loss",
    "metric_value",
    "searcher_metric",
    "sort_key",
    "summarize_config",
    "took_s",
    "trial_state",
    "visible_config",
]
