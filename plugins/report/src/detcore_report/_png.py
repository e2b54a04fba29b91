"""Plot an experiment as a PNG image with matplotlib (the extra ``plot``)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from detcore.describe import format_number
from detcore.errors import RunError
from detcore_report._parts import cut
from detcore_report._svg import name_lines
from detcore_report._view import ExperimentView, thin

if TYPE_CHECKING:
    from detcore_report._view import TrialView


_MANY = 8
_POINTS = 2000
_FEW_COLOURS = (
    "#0072b2", "#c84c00", "#00805c", "#a8447c", "#8a6a00", "#5b4bb7", "#4d4d4d", "#a03030",
)  # fmt: skip
_SHADES = ("#08306b", "#1a5597", "#3878b5", "#6399c6", "#8db5d6")
_BEST, _NONE, _DIM = "#c84c00", "#9a9a9a", "#5b6470"


def write_png(view: ExperimentView, path: Path) -> None:
    """Draw learning curves, and parallel coordinates below them.

    Raises:
        RunError: If matplotlib is not installed.
    """
    try:
        # The explicit canvas needs no display and no global state, whatever the user has set up.
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise RunError(
            f"a PNG image needs matplotlib, which cannot be imported: {error}.\n"
            "Install it: pip install 'detcore[plot]'. A page (-o FILE.html) needs nothing."
        ) from error
    has_axes = len(view.axes) > 1
    width = max(11.0, 1.3 * len(view.axes) if has_axes else 0.0)
    figure = Figure(figsize=(min(width, 60.0), 10.5 if has_axes else 5.5), layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(_plain(f"Experiment {view.record.id}: {cut(view.record.name)}"))
    upper = figure.add_subplot(2, 1, 1) if has_axes else figure.add_subplot()
    _draw_curves(upper, view)
    if has_axes:
        _draw_parallel(figure.add_subplot(2, 1, 2), view)
    figure.savefig(path, format="png", dpi=120)


def _plain(text: str) -> str:
    """Return a text that matplotlib will not parse as a formula, or show as a missing sign."""
    return "".join(sign if sign.isprintable() else "?" for sign in text).replace("$", r"\$")


def _colour(view: ExperimentView, trial: TrialView) -> str:
    ids = sorted(other.id for other in view.trials)
    if len(ids) <= _MANY:
        return _FEW_COLOURS[ids.index(trial.id)]
    if trial.rank is None:
        return _NONE
    if trial.rank == 0:
        return _BEST
    ranked = sum(other.rank is not None for other in view.trials)
    return _SHADES[min(len(_SHADES) - 1, (trial.rank - 1) * len(_SHADES) // max(1, ranked - 1))]


def _draw_curves(axes: Any, view: ExperimentView) -> None:
    axes.set_xlabel("steps", color=_DIM)
    axes.grid(True, color="#e3e6ea")
    axes.set_axisbelow(True)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    if not view.charts:
        axes.text(
            0.5, 0.5, "no metric with a finite value yet", ha="center", transform=axes.transAxes
        )
        return
    chart = view.charts[0]
    _, up = chart.scales()
    if up.is_log:
        axes.set_yscale("log")
    axes.set_title(_plain(cut(f"{chart.metric} ({chart.kind})", 100)), loc="left", fontsize=11)
    trials = {trial.id: trial for trial in view.trials}
    for curve in reversed(chart.curves):
        trial = trials.get(curve.trial_id)
        if trial is None or not curve.points:
            continue
        points = thin(curve.points, _POINTS)
        best = trial.rank == 0
        label = None
        if len(trials) <= _MANY or best:
            label = f"trial {trial.id}{' (best)' * best}"
        axes.plot(
            [x for x, _ in points],
            [y for _, y in points],
            color=_colour(view, trial),
            linewidth=2.5 if best else 1.2,
            marker="o" if len(points) == 1 else "",
            label=label,
        )
    if axes.get_legend_handles_labels()[0]:
        axes.legend(frameon=False, fontsize=9)


def _draw_parallel(axes: Any, view: ExperimentView) -> None:
    last = len(view.axes) - 1
    axes.set_xlim(-0.3, last + 0.4)
    axes.set_ylim(-0.16, 1.04)
    axes.set_yticks([])
    for side in ("top", "right", "left", "bottom"):
        axes.spines[side].set_visible(False)
    axes.set_xticks(
        range(last + 1),
        ["\n".join(map(_plain, name_lines(axis))) for axis in view.axes],
    )
    axes.tick_params(axis="x", length=0)
    missing = False
    for trial in reversed(view.trials):
        heights = [axis.positions.get(trial.id) for axis in view.axes]
        missing = missing or None in heights
        best = trial.rank == 0
        axes.plot(
            range(last + 1),
            [-0.1 if height is None else height for height in heights],
            color=_NONE if trial.rank is None else _colour(view, trial),
            linestyle="--" if trial.rank is None else "-",
            linewidth=2.5 if best else 1.0,
        )
    for place, axis in enumerate(view.axes):
        axes.plot([place, place], [0, 1], color=_DIM, linewidth=0.8)
        sign = 1 if place == last else -1
        for height, label in axis.ticks:
            axes.annotate(
                _plain(cut(label, 14)),
                (place, height),
                xytext=(5 * sign, 0),
                textcoords="offset points",
                ha="left" if sign > 0 else "right",
                va="center",
                fontsize=8,
                color=_DIM,
                bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.7, "pad": 0.5},
            )
    if missing:
        axes.annotate("none", (0, -0.1), xytext=(-5, 0), textcoords="offset points", ha="right",
                      va="center", fontsize=8, color=_DIM)  # fmt: skip
    best_trial = view.best
    if best_trial is not None:
        told = f"best: trial {best_trial.id}, {cut(view.metric)} {format_number(best_trial.value)}"
        axes.set_title(_plain(told), loc="left", fontsize=11)
