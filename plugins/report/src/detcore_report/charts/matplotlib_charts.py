"""Learning curves, parallel coordinates and scatter plots, drawn with matplotlib.

Pages and images contain the same figures. In a page a figure is SVG. Its lines and dots have CSS
classes, so that they follow the light or dark mode, and are highlighted with their trial.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import math
import re
import threading
import warnings
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from detcore.record_descriptions import format_number
from detcore_report.charts.axes import Axis, limit_number, needs_log_scale
from detcore_report.experiment_view import MAX_CURVES, Chart, Curve, ExperimentView, TrialView
from detcore_report.pages.page_parts import COLOURS, cut, escape, table

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import FigureBase

# Up to this number of trials have distinct colours. More trials are coloured by rank.
_MAX_COLOURS = 8
_NUM_SHADES = 5
_DASHED = ("k4", "k5", "k6", "k7", "none")
_MAX_HPARAMS = 12
_MAX_CATEGORY_LABELS = 12
# matplotlib's settings are global while a figure is drawn.
_LOCK = threading.Lock()
_PROPERTY = re.compile(r"([\w-]+): ([^;]+);? ?")
_TRIAL_MARK = re.compile(
    r'<g id="t(\d+)"><path d="([^"]*)"[^>]*/>(?:<defs>.*?</defs>)?(?:<g><use[^>]*/></g>)?</g>'
)


@dataclasses.dataclass(frozen=True, slots=True)
class _Size:
    """Size of a drawing, and of the margins around its axes, in pixels."""

    width: int
    height: int
    left: int
    right: int
    top: int
    bottom: int

    def add_axes(self, figure: FigureBase) -> Axes:
        """Return axes inside the margins of a figure of this size."""
        inner = self.width - self.left - self.right, self.height - self.top - self.bottom
        axes = figure.add_axes(
            (self.left / self.width, self.bottom / self.height,
             inner[0] / self.width, inner[1] / self.height)
        )  # fmt: skip
        axes.patch.set_visible(False)
        axes.spines[["top", "left", "right"]].set_visible(False)
        axes.tick_params(length=0, pad=7)
        return axes


_WIDE = _Size(1100, 380, 76, 14, 24, 40)
_NARROW = _Size(560, 270, 86, 14, 24, 48)
_SCATTER = _Size(380, 240, 60, 16, 16, 28)


# -- colours ------------------------------------------------------------------------------------


def trial_classes(view: ExperimentView) -> dict[int, str]:
    """Return the CSS classes of each trial: distinct colours for few trials, or shades by rank."""
    ranked = [trial.id for trial in view.trials if trial.rank is not None]
    # Only the first of very many trials are drawn. They have all shades.
    places = {trial_id: place for place, trial_id in enumerate(ranked)}
    last = max(1, min(len(ranked), MAX_CURVES) - 1)
    classes = {}
    by_number = sorted(trial.number for trial in view.trials)
    colours = {number % _MAX_COLOURS for number in by_number}
    for trial in view.trials:
        if len(colours) == len(by_number):
            colour = f"k{trial.number % _MAX_COLOURS}"
        elif len(by_number) <= _MAX_COLOURS:  # a selection of many trials, whose colours may repeat
            colour = f"k{by_number.index(trial.number)}"
        elif trial.rank is None:
            colour = "none"
        elif trial.rank == 0:
            colour = "q0"
        else:
            shade = max(0, places[trial.id] - 1) * _NUM_SHADES // last
            colour = f"q{1 + min(_NUM_SHADES - 1, shade)}"
        best = " best" if trial.rank == 0 else ""
        classes[trial.id] = f"t{trial.id} {colour}{best}"
    return classes


def _list_colours(view: ExperimentView) -> list[tuple[str, str]]:
    """Return the colours in use, and their meanings."""
    if len(view.trials) <= _MAX_COLOURS:
        classes = trial_classes(view)
        return [
            (classes[trial.id].split()[1], f"trial {trial.id}{' (best)' * (trial.rank == 0)}")
            for trial in sorted(view.trials, key=lambda trial: trial.id)
        ]
    meanings = []
    if view.best is not None:
        meanings.append(("q0", f"best: trial {view.best.id}"))
    if any(trial.rank is not None for trial in view.trials):
        meanings += [("q1", "better"), ("q3", "in the middle"), ("q5", "worse")]
    if any(trial.rank is None for trial in view.trials):
        meanings.append(("none", "without a value"))
    return meanings


def legend(view: ExperimentView) -> Markup:
    """Return a legend of the colours."""
    items = "".join(
        f'<li class="{colour}"><i></i>{escape(text)}</li>' for colour, text in _list_colours(view)
    )
    return Markup(f'<ul class="legend">{items}</ul>' if items else "")


def _line_style(colour: str, *, is_best: bool = False) -> dict[str, Any]:
    return {
        "color": COLOURS[colour],
        "linewidth": 3 if is_best else 1.5,
        "linestyle": (0, (5, 3)) if colour in _DASHED else "-",
    }


def _plot_trials(
    axes: Axes, view: ExperimentView, points: dict[int, Sequence[tuple[float, float]]]
) -> None:
    """Plot the points of trials, the best trial last and on top."""
    classes = trial_classes(view)
    for trial in reversed(view.trials):
        if trial.id in points:
            across, up = zip(*points[trial.id], strict=True)
            colour = classes[trial.id].split()[1]
            axes.plot(
                across, up, marker="o" if len(up) == 1 else "", clip_on=False, gid=f"t{trial.id}",
                solid_capstyle="round", **_line_style(colour, is_best=trial.rank == 0),
            )  # fmt: skip


# -- figures ------------------------------------------------------------------------------------


def _plot_curves(figure: FigureBase, size: _Size, view: ExperimentView, chart: Chart) -> Axes:
    axes = size.add_axes(figure)
    axes.grid(axis="y")
    axes.set_xlabel("steps", labelpad=6)
    axes.margins(x=0.01)
    if _is_log(chart):
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter("{x:g}")
        axes.minorticks_off()
    _plot_trials(
        axes,
        view,
        {
            curve.trial_id: [(x, limit_number(y)) for x, y in curve.points]
            for curve in chart.curves
            if curve.points
        },
    )
    axes.set_xlim(left=0)
    axes.locator_params(axis="x", nbins=6, integer=True)
    axes.xaxis.set_major_formatter("{x:g}")
    return axes


def _is_log(chart: Chart) -> bool:
    return needs_log_scale(y for curve in chart.curves for _, y in curve.points)


def _parallel_size(view: ExperimentView) -> _Size:
    width = min(12_000, max(890, 120 * (len(view.axes) - 1)))  # images have a maximum size
    return _Size(206 + width, 400, 106, 100, 64, 44)


def _plot_parallel(figure: FigureBase, size: _Size, view: ExperimentView) -> None:
    """Plot parallel coordinates: each trial is a line through its values to the metric.

    A missing value is below the axis, at ``none``.
    """
    axes = size.add_axes(figure)
    axes.axis("off")
    axes.set(xlim=(0, len(view.axes) - 1), ylim=(0, 1))
    _plot_trials(
        axes,
        view,
        {
            trial.id: [
                (place, axis.positions.get(trial.id, -0.1)) for place, axis in enumerate(view.axes)
            ]
            for trial in view.trials
        },
    )
    for place, axis in enumerate(view.axes):
        is_last = axis is view.axes[-1]
        axes.plot([place, place], [0, 1], color=COLOURS["dim"], linewidth=1, clip_on=False)
        parts = [cut(part, 18) for part in re.split(r"(?=\.)", axis.title)[-3:]]
        for line, part in enumerate(reversed(parts)):
            _annotate(axes, part, (place, 1), (0, 12 + 15 * line), ha="center",
                   weight="bold" if is_last else "normal", color=COLOURS["fg"])  # fmt: skip
        for position, label in _make_ticks(axis):
            _annotate(axes, cut(label, 14), (place, position), (8 if is_last else -8, 0),
                   ha="left" if is_last else "right", va="center")  # fmt: skip
    if any(trial.id not in axis.positions for axis in view.axes for trial in view.trials):
        _annotate(axes, "none", (0, -0.1), (-8, 0), ha="right", va="center")


def _plot_scatter(
    figure: FigureBase, size: _Size, view: ExperimentView, across: Axis, up: Axis
) -> None:
    axes = size.add_axes(figure)
    axes.set(xlim=(-0.03, 1.03), ylim=(-0.03, 1.03))
    axes.grid(axis="y")
    for axis, set_ticks, length in ((across, axes.set_xticks, 12), (up, axes.set_yticks, 8)):
        ticks = _make_ticks(axis)
        if axis is across:  # labels must not touch
            longest = max(len(cut(label, length)) for _, label in ticks)
            ticks = ticks[:: math.ceil(len(ticks) * (longest + 2) / 44)]
        labels = [_make_plain(cut(label, length)) for _, label in ticks]
        set_ticks([position for position, _ in ticks], labels, parse_math=False)
    both = across.positions.keys() & up.positions.keys()
    _plot_trials(
        axes, view, {trial: [(across.positions[trial], up.positions[trial])] for trial in both}
    )


def _make_ticks(axis: Axis) -> list[tuple[float, str]]:
    """Return positions and labels of round values."""
    from matplotlib.ticker import LogLocator, MaxNLocator

    if axis.categories:
        count = len(axis.categories)
        places = range(0, count, math.ceil(count / _MAX_CATEGORY_LABELS))
        return [((place + 0.5) / count, axis.categories[place]) for place in places]
    ratio = axis.high / axis.low if axis.is_log else 1
    locator = LogLocator(subs=[1] if ratio >= 100 else [1, 2, 5]) if ratio >= 5 else MaxNLocator(6)
    values = locator.tick_values(axis.low, axis.high)
    visible = [value for value in values if axis.low <= value <= axis.high] or [axis.low]
    return [(axis.place_number(value), f"{value:.9g}") for value in visible]


def _annotate(
    axes: Axes, text: str, at: tuple[float, float], offset: tuple[float, float], **style: Any
) -> None:
    """Write text beside a point."""
    axes.annotate(
        _make_plain(text), at, offset, textcoords="offset points", annotation_clip=False,
        parse_math=False, **{"color": COLOURS["dim"], **style},
    )  # fmt: skip


def _make_plain(text: str) -> str:
    return "".join(sign if sign.isprintable() else "?" for sign in text)


@contextlib.contextmanager
def _open_figure(width: float, height: float) -> Iterator[Any]:
    """Provide a figure with fixed settings, independent of the user's; lock other figures.

    One unit of its size is a pixel in SVG. The figure is not in matplotlib's list of open figures,
    and does not select a back end.
    """
    import matplotlib.style
    from matplotlib.figure import Figure

    dim = dict.fromkeys(("axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color"),
                        COLOURS["dim"])  # fmt: skip
    sizes = dict.fromkeys(("font.size", "axes.titlesize", "xtick.labelsize", "ytick.labelsize"), 12)
    settings = {**dim, **sizes, "text.color": COLOURS["fg"], "grid.color": COLOURS["line"],
                "svg.fonttype": "none", "svg.hashsalt": "detcore"}  # fmt: skip
    with _LOCK, matplotlib.style.context(["default", settings]), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing")  # shown as boxes
        yield Figure(figsize=(width / 72, height / 72))


def draw_png(view: ExperimentView) -> bytes:
    """Return an image of learning curves, with parallel coordinates below them."""
    file = io.BytesIO()
    has_axes = len(view.axes) > 1
    below = dataclasses.replace(_parallel_size(view), top=84) if has_axes else _WIDE
    upper = dataclasses.replace(_WIDE, width=below.width, top=60)
    heights = [upper.height, below.height] if has_axes else [upper.height]
    with _open_figure(below.width, sum(heights)) as figure:
        panels = figure.subfigures(len(heights), height_ratios=heights, squeeze=False)[:, 0]
        title = f"Experiment {view.record.id}: {cut(view.record.name)}"
        panels[0].suptitle(_make_plain(title), parse_math=False)
        if view.charts:
            axes = _plot_curves(panels[0], upper, view, view.charts[0])
            axes.set_title(_make_plain(_format_title(view.charts[0])), parse_math=False)
            handles = [
                axes.plot([], [], label=text, **_line_style(colour))[0]
                for colour, text in _list_colours(view)
            ]
            axes.legend(handles=handles, frameon=False, loc="upper right")
        else:
            panels[0].text(0.5, 0.5, "no metric with a finite value yet", ha="center")
        if has_axes:
            _plot_parallel(panels[1], below, view)
        figure.savefig(file, format="png", dpi=108)
    return file.getvalue()


def _draw_svg(
    view: ExperimentView, size: _Size, plot: Callable[..., object], *what: object, name: str,
    label: str,
) -> str:  # fmt: skip
    """Return a chart as SVG, without dates and styles.

    Args:
        view: The experiment.
        size: Size of the drawing.
        plot: Plots `what` on a figure of that size.
        name: CSS classes of the drawing.
        label: Text for screen readers.
    """
    file = io.StringIO()
    with _open_figure(size.width, size.height) as figure:
        figure.patch.set_visible(False)
        plot(figure, size, view, *what)
        figure.savefig(file, format="svg")
    svg = re.sub(r"\s*\n\s*", "", file.getvalue())
    svg = svg[svg.index('<g id="figure_1">') : svg.rindex("</g>") + 4]
    svg = re.sub(r"<[^>]+>", _clean_tag, svg)
    key = f"{zlib.crc32(f'{label}{name}{svg}'.encode()):x}"
    trials, classes = {trial.id: trial for trial in view.trials}, trial_classes(view)

    def mark_trial(found: re.Match[str]) -> str:
        trial = trials[int(found[1])]
        if "L" not in found[2]:
            x, y = found[2][1:].split()
            shape = f'<circle cx="{x}" cy="{y}" r="{5 if trial.rank == 0 else 4}"/>'
        else:  # also a wide line for the pointer
            path_id = f"{key}-{trial.id}"
            shape = f'<path id="{path_id}" d="{found[2]}"/><use href="#{path_id}"/>'
        title = escape(_describe_trial(view, trial))
        return f'<g class="t {classes[trial.id]}"><title>{title}</title>{shape}</g>'

    svg = _TRIAL_MARK.sub(mark_trial, svg)
    return (
        f'<svg class="{name}" viewBox="0 0 {size.width} {size.height}" width="{size.width}" '
        f'role="img" aria-label="{escape(label)}; the table of trials has the numbers">{svg}</svg>'
    )


def _clean_tag(found: re.Match[str]) -> str:
    """Return a tag with attributes in place of styles, which pages forbid, and short numbers."""
    tag = re.sub(r' (?:id="(?!t\d+")|clip-path="|transform=")[^"]*"', "", found[0])
    tag = re.sub(r"font-(?:size|family): [^;\"]*(?:; )?", "", tag)
    tag = re.sub(r'style="(.*?)"', lambda style: _PROPERTY.sub(r'\1="\2" ', style[1]), tag)
    for name in ("fg", "dim", "line"):
        tag = tag.replace(COLOURS[name], f"var(--{name})")
    tag = re.sub(r"\d+\.\d+", lambda number: f"{float(number[0]):.1f}".removesuffix(".0"), tag)
    return re.sub(r"(?<=[ML]) | (?=[ML\"])", "", tag)


# -- parts of pages -----------------------------------------------------------------------------


def _format_title(chart: Chart) -> str:
    return cut(f"{chart.metric} ({chart.kind})", 120)


def describe_chart(view: ExperimentView, chart: Chart) -> tuple[str, str]:
    """Return the title of a chart and a summary of its contents, not yet escaped."""
    trial_ids = {trial.id for trial in view.trials}
    curves = [curve for curve in chart.curves if curve.points and curve.trial_id in trial_ids]
    last = max((x for curve in chart.curves for x, _ in curve.points), default=0)
    num_omitted = sum(curve.num_not_finite for curve in chart.curves)
    summary = f"{len(curves)} trial{'s' * (len(curves) != 1)} over {last} steps"
    summary += f"; {num_omitted} values that are not finite are omitted" if num_omitted else ""
    return _format_title(chart), summary


def draw_chart(view: ExperimentView, chart: Chart, *, is_wide: bool) -> Markup:
    """Return a figure of learning curves that fits any width.

    Args:
        view: The experiment.
        chart: The chart.
        is_wide: Whether the chart spans the width of the page.
    """
    title, summary = describe_chart(view, chart)
    note = ", log scale" if _is_log(chart) else ""
    # The wide drawing would be flat on a phone, so the style shows one of two drawings.
    sizes = [(_WIDE, "fit big"), (_NARROW, "fit instead")] if is_wide else [(_NARROW, "fit")]
    drawings = "".join(
        _draw_svg(view, size, _plot_curves, chart, name=name,
                  label=f"{title}{note}: {summary}")
        for size, name in sizes
    )  # fmt: skip
    return Markup(
        f'<figure><h3>{escape(title)}<span class="scale">{note}</span></h3>{drawings}'
        f'<figcaption class="dim">{escape(summary)}</figcaption></figure>'
    )


def draw_parallel(view: ExperimentView) -> Markup:
    """Return a figure of parallel coordinates in a scrolling box; "" if nothing varies."""
    if len(view.axes) < 2:
        return Markup()
    size = _parallel_size(view)
    label = f"Hyperparameters of {len(view.trials)} trials, and {cut(view.metric or '')}"
    drawing = _draw_svg(view, size, _plot_parallel, name="parallel", label=label)
    return Markup(
        f'<figure><div class="scroll" role="region" tabindex="0" aria-label="{escape(label)}">'
        f"{drawing}</div></figure>"
    )


def draw_scatters(view: ExperimentView) -> Markup:
    """Return a figure for each varied hyperparameter, with a dot for each trial.

    Trials without a value of the metric or the hyperparameter are omitted and counted.
    """
    if len(view.axes) < 2:
        return Markup()
    *across, up = view.axes
    figures = "".join(_draw_scatter(view, axis, up) for axis in across)
    return Markup(f'<div class="charts small">{figures}</div>')


def _draw_scatter(view: ExperimentView, across: Axis, up: Axis) -> str:
    title = cut(across.title, 72)
    both = across.positions.keys() & up.positions.keys()
    num_drawn = sum(trial.id in both for trial in view.trials)
    num_omitted = len(view.trials) - num_drawn
    summary = f"{num_drawn} trial{'s' * (num_drawn != 1)}"
    summary += f"; {num_omitted} without a value are omitted" if num_omitted else ""
    label = f"{cut(view.metric or '', 60)} against {title}: {summary}"
    drawing = _draw_svg(view, _SCATTER, _plot_scatter, across, up, name="fit", label=label)
    return (
        f"<figure><h3><bdi>{escape(title)}</bdi></h3>{drawing}"
        f'<figcaption class="dim">{escape(summary)}</figcaption></figure>'
    )


def _describe_trial(view: ExperimentView, trial: TrialView) -> str:
    """Return a trial in one line: state, metric and hyperparameters."""
    parts = [f"trial {trial.id} ({trial.state})"]
    if view.metric is not None and trial.value is not None:
        parts.append(f"best {cut(view.metric)} {format_number(trial.value)} at {trial.value_step}")
    names = [axis.name for axis in view.axes if axis.name in trial.hparams][:_MAX_HPARAMS]
    parts.append(
        " ".join(f"{cut(name, 60)}={cut(format_number(trial.hparams[name]), 40)}" for name in names)
    )
    return "; ".join(filter(None, parts))


def chart_table(view: ExperimentView, chart: Chart) -> Markup:
    """Return the ends and extremes of a chart's curves as a table."""
    curves = {curve.trial_id: curve for curve in chart.curves}
    rows = [
        ("", [str(trial.id), *_list_cells(curves[trial.id])])
        for trial in view.trials
        if trial.id in curves and (curves[trial.id].points or curves[trial.id].num_not_finite)
    ]
    return table(
        f"{cut(chart.metric, 80)} ({chart.kind}) of each trial, the best trial first",
        ["trial", "first", "at step", "smallest", "at step", "largest", "at step", "last",
         "at step", "not finite"],
        rows,
        right=range(10),
        is_tall=len(rows) > 20,
    )  # fmt: skip


def _list_cells(curve: Curve) -> list[str]:
    points = curve.points
    if not points:
        return ["-"] * 8 + [str(curve.num_not_finite)]
    lowest = min(points, key=lambda point: point[1])
    highest = max(points, key=lambda point: point[1])
    cells = []
    for step, value in (points[0], lowest, highest, points[-1]):
        cells += [format_number(value), str(step)]
    return [*cells, str(curve.num_not_finite)]
