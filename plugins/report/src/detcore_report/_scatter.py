"""Plot each hyperparameter against the metric, as SVG."""

from __future__ import annotations

from typing import TYPE_CHECKING

from detcore_report._parts import cut, escape
from detcore_report._scales import Axis
from detcore_report._svg import Place, draw_frame, that_fit, trial_classes, trial_line

if TYPE_CHECKING:
    from detcore_report._view import ExperimentView


_WIDTH, _HEIGHT = 380, 240


def draw_scatters(view: ExperimentView) -> str:
    """Return a figure for each hyperparameter that varies: a dot for each trial.

    A trial without a value of the metric, or of the hyperparameter, is left out and counted.
    """
    if len(view.axes) < 2:
        return ""
    *across, up = view.axes
    figures = "".join(_figure(view, axis, up) for axis in across)
    return f'<div class="charts small">{figures}</div>'


def _figure(view: ExperimentView, across: Axis, up: Axis) -> str:
    place = Place(left=58, right=_WIDTH - 14, top=10, bottom=_HEIGHT - 26)
    inner = Place(
        left=place.left + 12, right=place.right - 8, top=place.top + 8, bottom=place.bottom - 8
    )
    both = across.positions.keys() & up.positions.keys()
    classes = trial_classes(view)
    dots = [
        f'<g class="t dot {classes[trial.id]}"><title>{escape(trial_line(view, trial))}</title>'
        f'<circle cx="{inner.x(across.positions[trial.id]):.1f}" '
        f'cy="{inner.y(up.positions[trial.id]):.1f}" r="{5 if trial.rank == 0 else 4}"/></g>'
        for trial in reversed(view.trials)  # the best one last, on top
        if trial.id in both
    ]
    note = f" ({across.note} scale)" if across.note else ""
    title = f"{cut(across.name, 60)}{note}"
    missing = sum(trial.id not in both for trial in view.trials)
    gone = f"; {missing} without a value are left out" if missing else ""
    counted = f"{len(dots)} trial{'s' * (len(dots) != 1)}{gone}"
    told = f"{cut(view.metric or '', 60)} against {title}: {counted}"
    ticks = that_fit(across.ticks, inner)
    return (
        f"<figure><h3><bdi>{escape(title)}</bdi></h3>"
        f'<svg class="fit" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" '
        f'aria-label="{escape(told)}; the table of trials has the numbers">'
        f"{draw_frame(place, inner, across=ticks, up=up.ticks, name='', height=_HEIGHT)}"
        f"{''.join(dots)}</svg>"
        f'<figcaption class="dim">{escape(counted)}</figcaption></figure>'
    )
