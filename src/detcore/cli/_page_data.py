"""What a page about an experiment shows: trials, curves thinned to what can be seen, axes."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from detcore.cli._page_scales import Axis, Scale, make_axis, make_scale, number_of
from detcore.cli._records import (
    describe_experiment,
    describe_trials,
    metric_value,
    searcher_metric,
    sort_key,
    trial_state,
)
from detcore.errors import NotFoundError

if TYPE_CHECKING:
    from detcore.database import Database, ExperimentRecord, MetricRecord, TrialRecord

__all__ = ["Chart", "Curve", "ExperimentView", "TrialView", "read_view", "thin"]

# Curves beyond this are neither told apart nor drawn in a second.
MAX_CURVES = 200
MAX_ROWS = 500


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TrialView:
    """A trial.

    Attributes:
        state: For people.
        value: Best finite value of the metric that decides, or None.
        value_step: When it had that.
        last: The last value of that metric, or None; may be NaN.
        hparams: Nested names with dots.
        rank: Its place among the trials with a value, from 0, or None.
    """

    id: int
    state: str
    steps: int
    rung: int | None
    error: str | None
    value: float | None
    value_step: int | None
    last: float | None
    hparams: Mapping[str, object]
    rank: int | None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """A metric of a trial over steps; what is not finite is counted and left out."""

    trial_id: int
    points: Sequence[tuple[int, float]]
    num_not_finite: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """A metric of all trials over steps."""

    metric: str
    kind: str
    curves: Sequence[Curve]

    def scales(self) -> tuple[Scale, Scale]:
        """Return the scales of steps and of values."""
        steps = [x for curve in self.curves for x, _ in curve.points]
        values = [y for curve in self.curves for _, y in curve.points]
        # From 0, because training begins there; but a single point is not drawn at the edge.
        return make_scale([float(x) for x in (0, *steps)], is_log=False), make_scale(values)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ExperimentView:
    """An experiment, ready to be drawn.

    Attributes:
        overview: As `detcore experiment list --json` has it.
        trials: Those that are shown, the best first; those without a value are last.
        num_trials: How many there are.
        metric: What trials are compared by, or None.
        charts: That metric's chart first.
        hidden_metrics: Metrics that are in no chart.
        axes: Varied hyperparameters, then the metric.
        constants: Hyperparameters that all trials share.
    """

    record: ExperimentRecord
    overview: Mapping[str, Any]
    trials: Sequence[TrialView]
    num_trials: int
    metric: str | None
    smaller_is_better: bool
    charts: Sequence[Chart]
    hidden_metrics: Sequence[str]
    axes: Sequence[Axis]
    constants: Mapping[str, object]

    @property
    def best(self) -> TrialView | None:
        """The best trial, or None if none has a value."""
        return self.trials[0] if self.trials and self.trials[0].rank == 0 else None


def read_view(
    database: Database,
    experiment_id: int,
    *,
    metric: str | None = None,
    all_metrics: bool = False,
    max_charts: int = 8,
) -> ExperimentView:
    """Read an experiment.

    Args:
        database: The records.
        experiment_id: Which.
        metric: What to compare trials by; None: the searcher's metric.
        all_metrics: Whether to make charts of the other metrics, too.
        max_charts: At most so many charts.

    Raises:
        NotFoundError: If there is no such experiment, or no trial has reported `metric`.
    """
    record = database.get_experiment(experiment_id)
    own, smaller = searcher_metric(record.config)
    smaller = smaller is not False
    records = database.list_trials(experiment_id)
    reports = _read_reports(database, records, "validation")
    names = _metric_names(reports)
    # Training reports are many: they are read where they are needed.
    if all_metrics or not any(name == (metric or own) for _, name in names):
        reports |= _read_reports(database, records, "training")
        names = _metric_names(reports)
    if metric is not None and not any(name == metric for _, name in names):
        listed = ", ".join(dict.fromkeys(name for _, name in names)) or "none yet"
        raise NotFoundError(
            f"no trial of experiment {experiment_id} has reported a metric {metric!r}.\n"
            f"Metrics there: {listed}."
        )
    metric = metric or own or next((name for _, name in names), None)
    rows = describe_trials(database, records, metric=metric, smaller_is_better=smaller)
    kind = next((kind for kind, name in names if name == metric), "validation")
    trials = _rank(rows, reports, kind, metric, smaller_is_better=smaller)
    drawn = [trial.id for trial in trials[:MAX_CURVES]]
    wanted = sorted(names, key=lambda name: (name != (kind, metric), names.index(name)))
    if not all_metrics:
        wanted = [name for name in wanted if name == (kind, metric)]
    charts = [_chart(reports, drawn, kind, name) for kind, name in wanted[:max_charts]]
    varied, constants = _split([trial.hparams for trial in trials])
    return ExperimentView(
        record=record,
        overview=describe_experiment(database, record, len(records)),
        trials=trials[:MAX_ROWS],
        num_trials=len(records),
        metric=metric,
        smaller_is_better=smaller,
        charts=[chart for chart in charts if any(curve.points for curve in chart.curves)],
        hidden_metrics=[f"{name} ({kind})" for kind, name in wanted[max_charts:]],
        axes=_axes(trials[:MAX_CURVES], varied, record.config, metric),
        constants=constants,
    )


def _read_reports(
    database: Database, trials: Sequence[TrialRecord], kind: str
) -> dict[tuple[int, str], Sequence[MetricRecord]]:
    return {
        (trial.id, kind): database.metrics(trial.id, kind, with_batches=False) for trial in trials
    }


def _metric_names(
    reports: Mapping[tuple[int, str], Sequence[MetricRecord]],
) -> list[tuple[str, str]]:
    """Return kind and name of reported numbers, validation first."""
    names = {
        (kind, name)
        for (_, kind), rows in reports.items()
        for row in rows
        for name, value in row.metrics.items()
        if isinstance(value, (int, float)) and not isinstance(value, bool)
    }
    return sorted(names, key=lambda name: (name[0] != "validation", name[1]))


def _rank(
    rows: list[dict[str, Any]],
    reports: Mapping[tuple[int, str], Sequence[MetricRecord]],
    kind: str,
    metric: str | None,
    *,
    smaller_is_better: bool,
) -> list[TrialView]:
    """Return the trials, the best first."""
    found = []
    for row in rows:
        series = [
            (report.steps_completed, report.metrics[metric])
            for report in reports.get((row["id"], kind), ())
            if metric is not None and metric in report.metrics
        ]
        value, step = number_of(metric_value(row, metric)), None
        if value is not None:
            step = row["best_validation"]["steps_completed"]
        else:  # a training metric, or the best is infinite
            finite = [(number_of(y), x) for x, y in series if number_of(y) is not None]
            if finite:
                value, step = (min if smaller_is_better else max)(finite)
        last = series[-1][1] if series else None
        found.append((row, value, step, last if isinstance(last, (int, float)) else None))
    found.sort(key=lambda item: sort_key(item[1], smaller_is_better=smaller_is_better))
    return [
        TrialView(
            id=row["id"],
            state=trial_state(row),
            steps=row["steps_completed"],
            rung=row["rung"],
            error=row["error"],
            value=value,
            value_step=step,
            last=last,
            hparams=_flat(row["hparams"]),
            rank=None if value is None else place,
        )
        for place, (row, value, step, last) in enumerate(found)
    ]


def _flat(tree: Mapping[str, Any], prefix: str = "") -> dict[str, object]:
    flat: dict[str, object] = {}
    for key, value in tree.items():
        if isinstance(value, Mapping) and value:
            flat.update(_flat(value, f"{prefix}{key}."))
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def _chart(
    reports: Mapping[tuple[int, str], Sequence[MetricRecord]],
    trials: Sequence[int],
    kind: str,
    metric: str,
) -> Chart:
    curves = []
    for trial_id in trials:
        series = [
            (row.steps_completed, row.metrics[metric])
            for row in reports[trial_id, kind]
            if metric in row.metrics
        ]
        numbers = [(x, number_of(y)) for x, y in series]
        points = [(x, y) for x, y in numbers if y is not None]
        curves.append(
            Curve(trial_id=trial_id, points=points, num_not_finite=len(series) - len(points))
        )
    return Chart(metric=metric, kind=kind, curves=curves)


def _split(
    hparams: Sequence[Mapping[str, object]],
) -> tuple[list[str], dict[str, object]]:
    """Return the names that differ between trials, and what all share."""
    names = dict.fromkeys(name for tree in hparams for name in tree)
    varied, constants = [], {}
    for name in names:
        values = {repr(tree[name]) if name in tree else None for tree in hparams}
        if len(values) > 1:
            varied.append(name)
        else:
            constants[name] = hparams[0][name]
    return varied, constants


def _axes(
    trials: Sequence[TrialView],
    varied: Sequence[str],
    config: Mapping[str, Any],
    metric: str | None,
) -> list[Axis]:
    from detcore.config import ranges

    settings: dict[str, Mapping[str, Any]] = {}
    tree = config.get("hyperparameters")
    if isinstance(tree, Mapping):
        settings = {".".join(map(str, place)): setting for place, setting in ranges(tree)}
    axes = []
    for name in varied:
        values = {trial.id: trial.hparams[name] for trial in trials if name in trial.hparams}
        axes.append(make_axis(name, values, settings.get(name)))
    if axes and metric is not None:
        reached = {trial.id: trial.value for trial in trials if trial.value is not None}
        scale = make_scale(reached.values())
        axes.append(
            Axis(
                name=metric,
                note="log" if scale.is_log else "",
                ticks=scale.ticks() if reached else [],
                positions={trial: scale.position(value) for trial, value in reached.items()},
            )
        )
    return axes


def thin(points: Sequence[tuple[int, float]], limit: int) -> list[tuple[int, float]]:
    """Return at most `limit` points of a curve, with every peak that can be seen.

    The steps are cut into equal parts; of each the smallest and the largest value stay, and so do
    the first and the last point.

    Args:
        points: Steps, ascending, and finite values.
        limit: How many; >= 4.
    """
    if len(points) <= limit:
        return list(points)
    parts = (limit - 2) // 2
    first, last = points[0][0], points[-1][0]
    kept = {0, len(points) - 1}
    ends: dict[int, tuple[int, int]] = {}
    for index, (x, y) in enumerate(points):
        part = min(parts - 1, math.floor((x - first) / max(1, last - first) * parts))
        low, high = ends.get(part, (index, index))
        ends[part] = (
            index if y < points[low][1] else low,
            index if y > points[high][1] else high,
        )
    for low, high in ends.values():
        kept |= {low, high}
    return [points[index] for index in sorted(kept)]
