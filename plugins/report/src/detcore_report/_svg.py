"""Draw learning curves and parallel coordinates as SVG for a page."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from detcore.describe import format_number
from detcore_report._parts import cut, escape
from detcore_report._scales import Axis, Scale
from detcore_report._view import MAX_CURVES, Chart, Curve, ExperimentView, TrialView, thin

# Up to this many trials get a colour each; more are coloured by their rank.
_MANY = 8
_SHADES = 5
_NAME_SHOWN = 18
_LABEL_SHOWN = 14
_HPARAMS_TOLD = 12
_TICK_SHOWN = 12
# On a phone, text is about 20 units high.
_LETTER_NARROW = 11.5
_AXIS_GAP = 100


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Size:
    """Size of a drawing, and the class that the style knows it by.

    Attributes:
        left: Width of the labels beside the frame.
        below: Height of the labels under the frame.
    """

    width: int
    height: int
    left: int
    below: int
    name: str


_WIDE = _Size(width=1100, height=380, left=76, below=38, name="fit big")
_NARROW = _Size(width=560, height=270, left=86, below=46, name="fit")
_INSTEAD = dataclasses.replace(_NARROW, name="fit instead")
# Of a curve of a narrow drawing; more points would fall on the same pixels of a phone.
_POINTS_NARROW = 100


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """The rectangle of a drawing, in pixels, y downwards."""

    left: float
    right: float
    top: float
    bottom: float

    def x(self, position: float) -> float:
        """Return the pixel of a position from 0 (left) to 1 (right)."""
        return self.left + position * (self.right - self.left)

    def y(self, position: float) -> float:
        """Return the pixel of a position from 0 (bottom) to 1 (top)."""
        return self.bottom - position * (self.bottom - self.top)


def _inner(place: Place) -> Place:
    """Return the rectangle for curves, which leaves a margin to the axes."""
    return Place(left=place.left, right=place.right - 6, top=place.top + 4, bottom=place.bottom - 8)


def trial_classes(view: ExperimentView) -> dict[int, str]:
    """Return the CSS classes of each trial: few get a colour each, many a shade by rank."""
    ranked = [trial.id for trial in view.trials if trial.rank is not None]
    # Of very many trials only the first are drawn, and have all shades.
    places = {trial_id: place for place, trial_id in enumerate(ranked)}
    last = max(1, min(len(ranked), MAX_CURVES) - 1)
    classes = {}
    by_number = sorted(trial.number for trial in view.trials)
    own = {number % _MANY for number in by_number}
    for trial in view.trials:
        if len(own) == len(by_number):
            colour = f"k{trial.number % _MANY}"
        elif len(by_number) <= _MANY:  # a selection of many trials, whose colours may repeat
            colour = f"k{by_number.index(trial.number)}"
        elif trial.rank is None:
            colour = "none"
        elif trial.rank == 0:
            colour = "q0"
        else:
            shade = max(0, places[trial.id] - 1) * _SHADES // last
            colour = f"q{1 + min(_SHADES - 1, shade)}"
        best = " best" if trial.rank == 0 else ""
        classes[trial.id] = f"t{trial.id} {colour}{best}"
    return classes


def legend(view: ExperimentView) -> str:
    """Return a legend of the colours."""
    classes = trial_classes(view)
    if not view.trials:
        return ""
    if len(view.trials) <= _MANY:
        marks = [
            (classes[trial.id].split()[1], f"trial {trial.id}{' (best)' * (trial.rank == 0)}")
            for trial in sorted(view.trials, key=lambda trial: trial.id)
        ]
    else:
        best = view.best
        marks = []
        if best is not None:
            marks.append(("q0", f"best: trial {best.id}"))
        if any(trial.rank is not None for trial in view.trials):
            marks += [("q1", "better"), ("q3", "in the middle"), ("q5", "worse")]
        if any(trial.rank is None for trial in view.trials):
            marks.append(("none", "without a value"))
    items = "".join(f'<li class="{mark}"><i></i>{escape(text)}</li>' for mark, text in marks)
    return f'<ul class="legend">{items}</ul>'


def draw_chart(
    view: ExperimentView, chart: Chart, *, number: int, points: int, is_wide: bool
) -> str:
    """Return a figure of learning curves that fits any width.

    Args:
        view: The experiment.
        chart: The chart.
        number: Number of this chart on the page.
        points: Maximum number of points of each curve.
        is_wide: Whether it spans the whole width of the page.
    """
    _, up = chart.scales()
    title = cut(f"{chart.metric} ({chart.kind})", 120)
    note = ", log scale" if up.is_log else ""
    gone = sum(curve.num_not_finite for curve in chart.curves)
    drawn = _drawn(view, chart)
    last = max((x for curve in chart.curves for x, _ in curve.points), default=0)
    told = f"{len(drawn)} trial{'s' * (len(drawn) != 1)} over {last} steps"
    told += f"; {gone} values that are not finite are left out" if gone else ""
    label = f"{title}{note}: {told}; the table of trials has the numbers"
    size = _WIDE if is_wide else _NARROW
    drawings = _draw_curves(view, chart, size, key=f"c{number}", points=points, label=label)
    if is_wide:
        # Shrunk to a phone, the wide drawing would be flat: the style shows one of the two.
        few = min(points, _POINTS_NARROW)
        key = f"n{number}"
        drawings += _draw_curves(view, chart, _INSTEAD, key=key, points=few, label=label)
    return (
        f'<figure><h3>{escape(title)}<span class="scale">{note}</span></h3>{drawings}'
        f'<figcaption class="dim">{escape(told)}</figcaption></figure>'
    )


def _drawn(view: ExperimentView, chart: Chart) -> list[Curve]:
    known = {trial.id for trial in view.trials}
    return [curve for curve in chart.curves if curve.points and curve.trial_id in known]


def _draw_curves(
    view: ExperimentView, chart: Chart, size: _Size, *, key: str, points: int, label: str
) -> str:
    """Return a drawing of a chart, whose elements have ids that begin with `key`."""
    width, height = size.width, size.height
    place = Place(left=size.left, right=width - 12, top=10, bottom=height - size.below)
    across, up = chart.scales()
    inner = _inner(place)
    parts = [
        draw_frame(place, inner, across=across.ticks(6), up=up.ticks(), name="steps", height=height)
    ]
    trials = {trial.id: trial for trial in view.trials}
    classes = trial_classes(view)
    for curve in reversed(_drawn(view, chart)):  # the best one last: nothing lies over it
        parts.append(
            _curve(
                view, trials[curve.trial_id], curve, inner, (across, up),
                name=classes[curve.trial_id], key=f"{key}-{curve.trial_id}", points=points,
                chart=chart,
            )
        )  # fmt: skip
    return (
        f'<svg class="{size.name}" viewBox="0 0 {width} {height}" role="img" '
        f'aria-label="{escape(label)}">{"".join(parts)}</svg>'
    )


def draw_frame(
    place: Place,
    inner: Place,
    *,
    across: Sequence[tuple[float, str]],
    up: Sequence[tuple[float, str]],
    name: str,
    height: int,
) -> str:
    """Return the lines and labels around a drawing.

    Args:
        place: The frame.
        inner: The rectangle of positions 0 to 1.
        across: Ticks below.
        up: Ticks on the left, each with a line.
        name: Label below the ticks.
        height: Height of the drawing.
    """
    parts = []
    for position, label in up:
        y = inner.y(position)
        short = cut(label, 9)
        parts.append(
            f'<line class="grid" x1="{place.left}" x2="{place.right}" y1="{y:.1f}" y2="{y:.1f}"/>'
            f'<text class="dim up" x="{place.left - 6}" y="{y:.1f}" text-anchor="end">'
            f"{escape(short)}</text>"
        )
    below_ticks = place.bottom + (0.43 * (height - place.bottom) if name else 16)
    for index, (position, label) in enumerate(across):
        x = inner.x(position)
        anchor = "end" if index == len(across) - 1 and position > 0.97 else "middle"
        parts.append(
            f'<text class="dim" x="{x:.1f}" y="{below_ticks:.0f}" text-anchor="{anchor}">'
            f"{escape(label)}</text>"
        )
    below = ""
    if name:
        below = (
            f'<text class="dim" x="{place.x(0.5):.0f}" y="{height - 4}" text-anchor="middle">'
            f"{escape(name)}</text>"
        )
    return (
        f'{"".join(parts)}<line class="axis" x1="{place.left}" x2="{place.right}" '
        f'y1="{place.bottom}" y2="{place.bottom}"/>{below}'
    )


def _curve(
    view: ExperimentView,
    trial: TrialView,
    curve: Curve,
    place: Place,
    scales: tuple[Scale, Scale],
    *,
    name: str,
    key: str,
    points: int,
    chart: Chart,
) -> str:
    across, up = scales
    shown = thin(curve.points, points)
    spots = [(place.x(across.position(x)), place.y(up.position(y))) for x, y in shown]
    low = min(curve.points, key=lambda point: point[1])
    high = max(curve.points, key=lambda point: point[1])
    lines = [
        trial_line(view, trial),
        f"{cut(chart.metric)}: last {format_number(curve.points[-1][1])} at "
        f"{curve.points[-1][0]}, min {format_number(low[1])} at {low[0]}, "
        f"max {format_number(high[1])} at {high[0]}",
    ]
    if curve.num_not_finite:
        lines.append(f"{curve.num_not_finite} values are not finite")
    dots = ""
    if len(spots) == 1:
        dots = f'<circle cx="{spots[0][0]:.1f}" cy="{spots[0][1]:.1f}" r="4"/>'
    return _group(name, key, lines, _path(spots), dots)


def _group(name: str, key: str, lines: Sequence[str], path: str, more: str = "") -> str:
    told = escape("\n".join(lines))
    return (
        f'<g class="t {name}"><title>{told}</title><path id="{key}" d="{path}"/>'
        f'<use href="#{key}"/>{more}</g>'
    )


def _path(spots: Sequence[tuple[float, float]]) -> str:
    return "M" + "L".join(f"{_short(x)} {_short(y)}" for x, y in spots)


def _short(number: float) -> str:
    return f"{number:.1f}".removesuffix(".0")


def trial_line(view: ExperimentView, trial: TrialView) -> str:
    """Return a trial in one line: state, metric, hyperparameters."""
    parts = [f"trial {trial.id} ({trial.state})"]
    if view.metric is not None and trial.value is not None:
        parts.append(f"best {cut(view.metric)} {format_number(trial.value)} at {trial.value_step}")
    names = [axis.name for axis in view.axes if axis.name in trial.hparams][:_HPARAMS_TOLD]
    told = " ".join(f"{cut(name, 60)}={cut(_hparam(trial.hparams[name]), 40)}" for name in names)
    return "; ".join([*parts, told]) if told else "; ".join(parts)


def _hparam(value: object) -> str:
    return format_number(value)


def draw_parallel(view: ExperimentView) -> str:
    """Return a figure of parallel coordinates: each trial is a line through its values.

    The last axis is the metric. A missing value is drawn below the axis, at ``none``.
    """
    axes = view.axes
    if len(axes) < 2:
        return ""
    gap = max(120.0, 940 / (len(axes) - 1))
    width, height = round(gap * (len(axes) - 1) + 206), 400
    place = Place(left=106, right=width - 100, top=64, bottom=height - 44)
    below = place.bottom + 26
    ids = [trial.id for trial in view.trials]
    missing = any(trial_id not in axis.positions for axis in axes for trial_id in ids)
    classes = trial_classes(view)
    lines = []
    for trial in reversed(view.trials):
        spots = []
        for index, axis in enumerate(axes):
            at = axis.positions.get(trial.id)
            x = place.x(index / (len(axes) - 1))
            spots.append((x, below if at is None else place.y(at)))
        name = classes[trial.id]
        if trial.rank is None and "none" not in name:
            name += " none"
        lines.append(_group(name, f"p{trial.id}", [trial_line(view, trial)], _path(spots)))
    drawn = "".join(
        _axis(axis, place, place.x(index / (len(axes) - 1)), is_last=index == len(axes) - 1)
        for index, axis in enumerate(axes)
    )
    none = ""
    if missing:
        none = (
            f'<text class="dim" x="{place.left - 8}" y="{below + 4}" text-anchor="end">none</text>'
        )
    told = f"Hyperparameters of {len(ids)} trials, and {cut(view.metric or '')}"
    box = f'role="region" tabindex="0" aria-label="{escape(told)}"'
    return (
        f'<figure><div class="scroll across" {box}>'
        f'<svg class="parallel" viewBox="0 0 {width} {height}" width="{width * 0.85:.0f}" '
        f'role="img" aria-label="{escape(told)}; the table of trials has the numbers">'
        f"{''.join(lines)}{drawn}{none}</svg></div>{_draw_upright(view, told)}</figure>"
    )


def _draw_upright(view: ExperimentView, told: str) -> str:
    """Return parallel coordinates for a phone: the axes lie one below the other."""
    axes, classes = view.axes, trial_classes(view)
    width, height = _NARROW.width, _AXIS_GAP * len(axes) + 10
    place = Place(left=24, right=width - 24, top=44, bottom=height - 62)
    missing = any(trial.id not in axis.positions for axis in axes for trial in view.trials)
    inner = dataclasses.replace(place, left=place.left + 60) if missing else place
    heights = [place.top + index * _AXIS_GAP for index in range(len(axes))]
    lines = []
    for trial in reversed(view.trials):
        spots = [
            (inner.x(axis.positions[trial.id]) if trial.id in axis.positions else place.left, y)
            for axis, y in zip(axes, heights, strict=True)
        ]
        name = classes[trial.id]
        if trial.rank is None and "none" not in name:
            name += " none"
        lines.append(_group(name, f"u{trial.id}", [f"trial {trial.id}"], _path(spots)))
    drawn = "".join(
        _lying_axis(axis, place, inner, y, is_last=axis is axes[-1])
        for axis, y in zip(axes, heights, strict=True)
    )
    return (
        f'<svg class="fit instead" viewBox="0 0 {width} {height}" role="img" '
        f'aria-label="{escape(told)}; the table of trials has the numbers">'
        f"{''.join(lines)}{drawn}</svg>"
    )


def _lying_axis(axis: Axis, place: Place, inner: Place, y: float, *, is_last: bool) -> str:
    weight = ' font-weight="600"' if is_last else ""
    note = f" ({axis.note})" if axis.note else ""
    parts = [
        f'<line class="axis" x1="{place.left}" x2="{place.right}" y1="{y}" y2="{y}"/>'
        f'<g><title>{escape(cut(axis.name, 300))}</title><text x="{place.left}" y="{y - 12}"'
        f"{weight}>{escape(cut(axis.name, 2 * _NAME_SHOWN))}{escape(note)}</text></g>"
    ]
    ticks = that_fit(axis.ticks, inner, letter=_LETTER_NARROW)
    if inner is not place:
        ticks = [(-60 / (inner.right - inner.left), "none"), *ticks]
    for position, label in ticks:
        x = inner.x(position)
        anchor = "start" if position < 0.05 else "end" if position > 0.95 else "middle"
        parts.append(
            f'<line class="axis" x1="{x:.1f}" x2="{x:.1f}" y1="{y - 3}" y2="{y + 3}"/>'
            f'<text class="dim" x="{x:.1f}" y="{y + 22}" text-anchor="{anchor}">'
            f"{escape(label)}</text>"
        )
    return "".join(parts)


def that_fit(
    ticks: Sequence[tuple[float, str]], place: Place, *, letter: float = 6.6
) -> list[tuple[float, str]]:
    """Return ticks whose labels do not touch, names cut.

    Args:
        ticks: Positions and labels.
        place: Where 0 to 1 is.
        letter: How wide a letter of a label is, about.
    """
    fitting: list[tuple[float, str]] = []
    free_from = 0.0
    for position, label in ticks:
        short = cut(label, _TICK_SHOWN)
        half = len(short) * letter / 2
        if place.x(position) - half >= free_from:
            fitting.append((position, short))
            free_from = place.x(position) + half + 8
    return fitting


def _axis(axis: Axis, place: Place, x: float, *, is_last: bool) -> str:
    parts = [
        f'<line class="axis" x1="{x:.1f}" x2="{x:.1f}" y1="{place.top}" y2="{place.bottom}"/>',
        f"<g><title>{escape(cut(axis.name, 300))}</title>",
    ]
    lines = name_lines(axis)
    for index, line in enumerate(lines):
        y = place.top - 14 - 15 * (len(lines) - 1 - index)
        weight = ' font-weight="600"' if is_last else ""
        parts.append(
            f'<text x="{x:.1f}" y="{y:.0f}" text-anchor="middle"{weight}>{escape(line)}</text>'
        )
    parts.append("</g>")
    side, anchor = (8, "start") if is_last else (-8, "end")
    for position, label in axis.ticks:
        y = place.y(position)
        short = cut(label, _LABEL_SHOWN)
        full = f"<title>{escape(cut(label, 300))}</title>" if short != label else ""
        parts.append(
            f'<line class="axis" x1="{x - 3:.1f}" x2="{x + 3:.1f}" y1="{y:.1f}" y2="{y:.1f}"/>'
            f'<text x="{x + side:.1f}" y="{y + 4:.1f}" text-anchor="{anchor}">'
            f"{full}{escape(short)}</text>"
        )
    return "".join(parts)


def name_lines(axis: Axis) -> list[str]:
    """Return an axis' name in up to three lines, cut at its dots."""
    lines: list[str] = []
    for part in axis.name.split("."):
        if lines and len(lines[-1]) + len(part) < _NAME_SHOWN - 4:
            lines[-1] += f".{part}"
        else:
            lines.append(f".{part}" if lines else part)
    lines = lines if len(lines) <= 3 else [lines[0], "\u2026", lines[-1]]
    lines = [cut(line, _NAME_SHOWN) for line in lines]
    if axis.note:
        lines[-1] += f" ({axis.note})"
    return lines
