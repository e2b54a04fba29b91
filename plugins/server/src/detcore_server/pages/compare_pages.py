"""Comparison of trials: hyperparameters, metrics and curves."""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import APIRouter, Query, Request, Response

from detcore.errors import NotFoundError
from detcore.record_descriptions import format_number
from detcore_report import Chart, legend, read_view
from detcore_server.pages.page_charts import page_charts
from detcore_server.pages.render import render
from detcore_server.users.authentication import State

if TYPE_CHECKING:
    from detcore_report import Curve, ExperimentView
    from detcore_server.server_state import ServerState


MAX_SIDE_BY_SIDE = 8
Numbers = Annotated[list[int], Query()]

router = APIRouter()


@router.get("/ui/compare")
def show_across(
    request: Request,
    state: State,
    trials: str = "",
    trial: Numbers = [],  # noqa: B006  (FastAPI copies it)
    experiment: Numbers = [],  # noqa: B006  (FastAPI copies it)
) -> Response:
    """Compare trials of any experiments."""
    trial_ids = [*(int(text) for text in re.findall(r"[0-9]{1,9}", trials)), *trial]
    for number in experiment[:MAX_SIDE_BY_SIDE]:
        best = read_view(state.database, number).best
        trial_ids += [] if best is None else [best.id]
    compared = compare_trials(state, trial_ids)
    records = compared["records"]
    return render(
        request, "across.html", **compared,
        experiments={
            number: state.database.get_experiment(record.experiment_id)
            for number, record in records.items()
        },
        is_live=any(record.state.value == "RUNNING" for record in records.values()),
    )  # fmt: skip


def compare_trials(
    state: ServerState, trial_ids: Sequence[int], experiment_id: int | None = None
) -> dict[str, Any]:
    """Return the template values for a comparison of trials.

    Args:
        state: The server.
        trial_ids: Selected trials, of which the first are shown.
        experiment_id: Experiment of the trials, or None for any experiment.
    """
    trial_ids = list(dict.fromkeys(trial_ids))
    selected_ids = trial_ids[:MAX_SIDE_BY_SIDE]
    trials_by_id = state.database.get_trials(selected_ids)
    records = {
        number: trials_by_id[number]
        for number in selected_ids
        if number in trials_by_id and experiment_id in (None, trials_by_id[number].experiment_id)
    }
    members: dict[int, list[int]] = {}
    for number, record in records.items():
        members.setdefault(record.experiment_id, []).append(number)
    view = None
    if len(records) > 1:
        views = _read_views(state, members)
        view = views[0] if len(views) == 1 else _merge_views(views, [*records])
    return {
        "records": records,
        "chosen": [*records],
        "missing": [number for number in selected_ids if number not in records],
        "num_left_out": len(trial_ids) - len(selected_ids),
        "max_side_by_side": MAX_SIDE_BY_SIDE,
        "view": view,
        "hyperparameters": [] if view is None else _hyperparameter_lines(view),
        "metrics": [] if view is None else _metric_lines(view),
        "charts": [] if view is None else page_charts(view),
        "legend": "" if view is None else legend(view),
    }


def _read_views(state: ServerState, members: Mapping[int, Sequence[int]]) -> list[ExperimentView]:
    """Return a view of each experiment, ranked by the first experiment's metric if possible."""
    views: list[ExperimentView] = []
    for experiment_id, ids in members.items():
        state.ingest_reports(experiment_id)
        read = functools.partial(
            read_view, state.database, experiment_id, only=ids, all_metrics=True
        )
        if not views:
            views.append(read())
            continue
        try:
            view = read(metric=views[0].metric, smaller_is_better=views[0].smaller_is_better)
        except NotFoundError:  # the experiment reports other metrics
            view = read()
            unranked = [
                dataclasses.replace(trial, value=None, value_step=None, last=None, rank=None)
                for trial in view.trials
            ]
            view = dataclasses.replace(view, trials=unranked)
        views.append(view)
    return views


def _merge_views(views: Sequence[ExperimentView], chosen: Sequence[int]) -> ExperimentView:
    """Merge several views into one view, with trials in the selected order."""
    trials_by_id = {trial.id: trial for view in views for trial in view.trials}
    trials = [
        dataclasses.replace(trials_by_id[number], number=place, rank=None)
        for place, number in enumerate(number for number in chosen if number in trials_by_id)
    ]
    curves: dict[tuple[str, str], Chart] = {}
    for view in views:
        for chart in view.charts:
            key = (chart.kind, chart.metric)
            merged = curves[key].curves if key in curves else ()
            curves[key] = dataclasses.replace(chart, curves=[*merged, *chart.curves])
    return dataclasses.replace(
        views[0], trials=trials, charts=list(curves.values()), num_trials=len(trials)
    )


@dataclasses.dataclass(frozen=True, slots=True)
class _Line:
    """Table row. `differs` marks a hyperparameter with more than one value."""

    name: str
    cells: Sequence[str]
    differs: bool = False


def _hyperparameter_lines(view: ExperimentView) -> list[_Line]:
    """Return the hyperparameters, differing values first."""
    lines = []
    for name in dict.fromkeys(name for trial in view.trials for name in trial.hparams):
        values = [
            (repr(trial.hparams[name]), format_number(trial.hparams[name]))
            if name in trial.hparams
            else ("", "-")
            for trial in view.trials
        ]
        lines.append(_Line(name, [cell for _, cell in values], len({*values}) > 1))
    return sorted(lines, key=lambda line: not line.differs)


def _metric_lines(view: ExperimentView) -> list[_Line]:
    """Return the best value of the ranking metric, and the last value of each metric."""
    lines = [
        _Line(
            f"best {view.metric or 'metric'}", [format_number(trial.value) for trial in view.trials]
        ),
        _Line("reached at step", [format_number(trial.value_step) for trial in view.trials]),
    ]
    for chart in view.charts:
        curves = {curve.trial_id: curve for curve in chart.curves}
        cells = [_format_last(curves.get(trial.id)) for trial in view.trials]
        lines.append(_Line(f"last {chart.metric} ({chart.kind})", cells))
    return lines


def _format_last(curve: Curve | None) -> str:
    if curve is None or not curve.points:
        return "-"
    step, value = curve.points[-1]
    return f"{format_number(value)} at {step}"
