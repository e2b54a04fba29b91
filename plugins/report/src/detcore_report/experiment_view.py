"""Read the data for a page about an experiment: trials, downsampled curves, axes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cache, partial
from typing import TYPE_CHECKING, Any

from detcore.errors import NotFoundError
from detcore.record_descriptions import (
    describe_experiment,
    describe_trials,
    flatten,
    is_loss,
    metric_value,
    sort_key,
    trial_state,
)
from detcore.records import MetricCurve
from detcore_report.charts.axes import Axis, make_axis, number_of

if TYPE_CHECKING:
    from detcore.records import Database, ExperimentRecord


# More curves could neither be distinguished nor drawn within a second.
MAX_CURVES = 200
MAX_ROWS = 500
MAX_POINTS = 40_000
# Curves are split into parts. The smallest and the largest value of each part are drawn.
_MIN_PARTS, _MAX_PARTS = 6, 500


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TrialView:
    """A trial.

    Attributes:
        state: Its state, for users.
        value: Best finite value of the ranking metric, or None.
        value_step: Step of that value.
        last: The last value of that metric, or None; may be NaN.
        hparams: Hyperparameters; nested names have dots.
        rank: Its rank among the trials with a value, from 0, or None.
        labels: Labels for searching.
        notes: A longer description, or "".
        number: Its index among the experiment's trials by id, from 0, which determines its colour.
    """

    id: int
    number: int
    state: str
    steps: int
    rung: int | None
    error: str | None
    value: float | None
    value_step: int | None
    last: float | None
    hparams: Mapping[str, object]
    rank: int | None
    labels: Sequence[str] = ()
    notes: str = ""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """A metric of a trial over steps; values that are not finite are counted but omitted."""

    trial_id: int
    points: Sequence[tuple[int, float]]
    num_not_finite: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """A metric of all trials over steps."""

    metric: str
    kind: str
    curves: Sequence[Curve]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ExperimentView:
    """An experiment, ready to be drawn.

    Attributes:
        overview: As in `detcore experiment list --json`.
        trials: The displayed trials, the best first, trials without a value last.
        num_trials: Total number of trials.
        metric: The metric that ranks trials, or None.
        kind: Whether that is a metric of "training" or of "validation".
        charts: Charts, starting with the ranking metric.
        metrics: Kind and name of all reported metrics.
        hidden_metrics: Metrics without a chart.
        axes: Varied hyperparameters, then the metric.
        constants: Hyperparameters that all trials share.
    """

    record: ExperimentRecord
    overview: Mapping[str, Any]
    trials: Sequence[TrialView]
    num_trials: int
    metric: str | None
    kind: str
    smaller_is_better: bool
    charts: Sequence[Chart]
    metrics: Sequence[tuple[str, str]]
    hidden_metrics: Sequence[str]
    axes: Sequence[Axis]
    constants: Mapping[str, object]

    @property
    def varied(self) -> list[str]:
        """Names of the hyperparameters that differ between trials."""
        return [axis.name for axis in self.axes if axis.name != self.metric]

    @property
    def best(self) -> TrialView | None:
        """The best trial, or None if no trial has a value."""
        return self.trials[0] if self.trials and self.trials[0].rank == 0 else None


def read_view(
    database: Database,
    experiment_id: int,
    *,
    metric: str | None = None,
    smaller_is_better: bool | None = None,
    all_metrics: bool = False,
    max_charts: int = 8,
    only: Collection[int] | None = None,
    max_points: int = MAX_POINTS,
    max_rows: int | None = MAX_ROWS,
) -> ExperimentView:
    """Read an experiment.

    Args:
        metric: The ranking metric, from validations if possible; None for the searcher's metric.
        all_metrics: Whether to include charts of other metrics.
        max_charts: Maximum number of charts.
        smaller_is_better: Its direction; None to use the name (a loss, a score) or the searcher.
        only: Only these trials; None for all trials.
        max_points: Approximate total number of points of all curves. Each curve has at least a few
            points, including its extremes. See `detcore.records.Database.metric_curves`.
        max_rows: Maximum number of trials in the view; None for all trials.

    Raises:
        NotFoundError: If the experiment does not exist, or no trial has reported `metric`.
    """
    record = database.get_experiment(experiment_id)
    records = database.list_trials(experiment_id)
    overview = describe_experiment(database, record, len(records))
    names = database.metric_names(experiment_id)
    ranking = _choose_ranking(overview, names, metric, smaller_is_better)
    rows = describe_trials(
        database, records, metric=ranking.metric, smaller_is_better=ranking.smaller_is_better
    )
    few = _choose_curves(rows, ranking, only, max_rows)
    charted = [name for name in names if all_metrics or name == (ranking.kind, ranking.metric)]
    charted.sort(key=lambda name: name != (ranking.kind, ranking.metric))
    num_curves = min(len(rows), len(few or rows), MAX_CURVES) * len(charted[:max_charts])
    parts = min(_MAX_PARTS, max(_MIN_PARTS, max_points // (2 * max(1, num_curves))))
    read_curves = cache(partial(database.metric_curves, experiment_id, parts=parts))
    trials = _rank_trials(rows, read_curves, ranking, only=few)
    selected = trials if only is None else [trial for trial in trials if trial.id in only]
    drawn_trials = selected[:MAX_CURVES]
    read_few = partial(read_curves, trial_ids=few)
    varied, constants = _split_hparams([trial.hparams for trial in selected])
    return ExperimentView(
        record=record,
        overview=overview,
        trials=selected[:max_rows],
        num_trials=len(records),
        metric=ranking.metric,
        kind=ranking.kind,
        smaller_is_better=ranking.smaller_is_better,
        charts=_make_charts(charted[:max_charts], drawn_trials, read_few),
        metrics=names,
        hidden_metrics=[f"{name} ({kind})" for kind, name in charted[max_charts:]],
        axes=_make_axes(drawn_trials, varied, record.config, ranking.metric),
        constants=constants,
    )


def select_trials(view: ExperimentView, trials: Sequence[TrialView]) -> ExperimentView:
    """Return a view of selected trials, limited to the number that can be drawn.

    Args:
        view: The experiment.
        trials: Trials of the view, in order.
    """
    drawn_trials = trials[:MAX_CURVES]
    if not drawn_trials:
        return dataclasses.replace(view, trials=drawn_trials)
    axes = _make_axes(drawn_trials, view.varied, view.record.config, view.metric)
    return dataclasses.replace(view, trials=drawn_trials, axes=axes)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Ranking:
    """The metric that ranks trials, its kind and its direction."""

    metric: str | None
    kind: str
    smaller_is_better: bool

    def sort_key(self, value: float | None) -> tuple[int, float]:
        """Return a key that sorts values with the best first."""
        return sort_key(value, smaller_is_better=self.smaller_is_better)


def _choose_ranking(
    overview: Mapping[str, Any],
    names: Sequence[tuple[str, str]],
    metric: str | None,
    smaller_is_better: bool | None,
) -> _Ranking:
    """Return the requested ranking; see `read_view`."""
    if metric is not None and all(name != metric for _, name in names):
        listed = ", ".join(dict.fromkeys(name for _, name in names)) or "none yet"
        raise NotFoundError(
            f"no trial of experiment {overview['id']} has reported a metric {metric!r}.\n"
            f"Reported metrics: {listed}."
        )
    if smaller_is_better is None and metric not in (None, overview["metric"]):
        smaller_is_better = is_loss(metric)
    if smaller_is_better is None:
        smaller_is_better = overview["smaller_is_better"] is not False
    metric = metric or overview["metric"] or next((name for _, name in names), None)
    kinds = [kind for kind, name in names if name == metric]
    return _Ranking(
        metric=metric,
        kind=kinds[0] if kinds else "validation",
        smaller_is_better=smaller_is_better,
    )


def _choose_curves(
    rows: Sequence[dict[str, Any]],
    ranking: _Ranking,
    only: Collection[int] | None,
    max_rows: int | None,
) -> tuple[int, ...] | None:
    """Return the trials whose curves are read, or None for all."""
    if only is not None:
        return tuple(sorted(only))
    if ranking.kind != "validation" or max_rows is None or len(rows) <= max_rows:
        return None
    best = sorted(
        rows, key=lambda row: ranking.sort_key(number_of(metric_value(row, ranking.metric)))
    )
    return tuple(row["id"] for row in best[:max_rows])


def _rank_trials(
    rows: list[dict[str, Any]],
    read_curves: Callable[..., Mapping[int, MetricCurve]],
    ranking: _Ranking,
    *,
    only: tuple[int, ...] | None,
) -> list[TrialView]:
    """Return the trials, the best first."""
    results = []
    metric, kind = ranking.metric, ranking.kind
    # The best value of a training metric is known only from its curve, so all curves are read.
    curves: Mapping[int, MetricCurve] = {}
    if metric is not None:
        curves = read_curves(kind, metric, trial_ids=only if kind == "validation" else None)
    for row in rows:
        series = curves.get(row["id"], MetricCurve()).points
        value, step = None, None
        if kind == "validation":
            value = number_of(metric_value(row, metric))
        if value is not None:
            step = row["best_validation"]["steps_completed"]
        else:  # a training metric, or the best is infinite
            finite = [(number_of(y), x) for x, y in series if number_of(y) is not None]
            if finite:
                value, step = (min if ranking.smaller_is_better else max)(finite)
        last = series[-1][1] if series else None
        results.append((row, value, step, last if isinstance(last, (int, float)) else None))
    results.sort(key=lambda item: ranking.sort_key(item[1]))
    numbers = {trial_id: index for index, trial_id in enumerate(sorted(row["id"] for row in rows))}
    return [
        TrialView(
            id=row["id"],
            number=numbers[row["id"]],
            state=trial_state(row),
            steps=row["steps_completed"],
            rung=row["rung"],
            error=row["error"],
            value=value,
            value_step=step,
            last=last,
            hparams=flatten(row["hparams"]),
            rank=None if value is None else place,
            labels=tuple(row["labels"]),
            notes=row["notes"],
        )
        for place, (row, value, step, last) in enumerate(results)
    ]


def _make_charts(
    names: Sequence[tuple[str, str]],
    trials: Sequence[TrialView],
    read_curves: Callable[[str, str], Mapping[int, MetricCurve]],
) -> list[Chart]:
    """Return a chart of each metric with finite values."""
    charts = [_make_chart(read_curves(kind, name), trials, kind, name) for kind, name in names]
    return [chart for chart in charts if any(curve.points for curve in chart.curves)]


def _make_chart(
    series: Mapping[int, MetricCurve], trials: Sequence[TrialView], kind: str, metric: str
) -> Chart:
    curves = []
    for trial in trials:
        curve = series.get(trial.id, MetricCurve())
        numbers = [(x, number_of(y)) for x, y in curve.points]
        points = [(x, y) for x, y in numbers if y is not None]
        num_omitted = len(curve.points) - len(points) + curve.num_nan
        curves.append(Curve(trial_id=trial.id, points=points, num_not_finite=num_omitted))
    return Chart(metric=metric, kind=kind, curves=curves)


def _split_hparams(
    hparams: Sequence[Mapping[str, object]],
) -> tuple[list[str], dict[str, object]]:
    """Return the names of hyperparameters that differ between trials, and the shared values."""
    names = dict.fromkeys(name for tree in hparams for name in tree)
    varied, constants = [], {}
    for name in names:
        values = {repr(tree[name]) if name in tree else None for tree in hparams}
        if len(values) > 1:
            varied.append(name)
        else:
            constants[name] = hparams[0][name]
    return varied, constants


def _make_axes(
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
        axes.append(make_axis(metric, reached))
    return axes
