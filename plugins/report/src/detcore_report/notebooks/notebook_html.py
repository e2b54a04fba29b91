"""Experiments and trials as HTML, which Jupyter and IPython display instead of ``repr``."""

from __future__ import annotations

from detcore.client import ExperimentReference, TrialReference
from detcore.errors import DetcoreError
from detcore_report.experiment_view import read_view
from detcore_report.pages.experiment_page import notebook_part
from detcore_report.pages.page_parts import cut, escape, fragment

# Total over all curves, so that saved notebooks stay small.
_MAX_POINTS = 1800
_MAX_CHARTS = 4
_MAX_TRIALS = 30


def notebook_html(shown: ExperimentReference | TrialReference) -> str:
    """Return an experiment with its learning curves and best trials, or a trial with its curves."""
    trial_id = shown.id if isinstance(shown, TrialReference) else None
    try:
        database = shown._transport.records()
        number = shown.id if trial_id is None else database.get_trial(trial_id).experiment_id
        view = read_view(
            database, number, all_metrics=trial_id is not None, max_charts=_MAX_CHARTS,
            only=None if trial_id is None else [trial_id],
            max_points=_MAX_POINTS, max_rows=_MAX_TRIALS,
        )  # fmt: skip
        return notebook_part(view, trial_id=trial_id)
    except DetcoreError as error:  # displaying the object must not fail
        error_html = f'<h3>{escape(repr(shown))}</h3><p class="bad">{escape(cut(error, 2000))}</p>'
        return fragment(error_html)
