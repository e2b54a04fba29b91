"""Trials of several experiments side by side."""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated

from fastapi import APIRouter, Query, Request, Response

from detcore.database import ingest_reports
from detcore.errors import NotFoundError
from detcore_report import Chart, legend, read_view
from detcore_server._auth import PageUser, State
from detcore_server._page._charts import page_charts
from detcore_server._page._render import PageRoute, render, svg
from detcore_server._page._side_by_side import MAX_SIDE_BY_SIDE, compare

if TYPE_CHECKING:
    from detcore_report import ExperimentView
    from detcore_server._state import ServerState


_PARTS = 250
_Numbers = Annotated[list[int], Query(max_length=1000)]


def make_router() -> APIRouter:
    """Return the routes of this part."""
    router = APIRouter(route_class=PageRoute, include_in_schema=False)

    @router.get("/ui/compare")
    def show_across(
        request: Request,
        state: State,
        user: PageUser,
        trials: Annotated[str, Query(max_length=2000)] = "",
        trial: _Numbers = [],  # noqa: B006  (FastAPI copies it)
        experiment: _Numbers = [],  # noqa: B006  (FastAPI copies it)
    ) -> Response:
        asked = [*(int(text) for text in re.findall(r"[0-9]{1,9}", trials)), *trial]
        for number in experiment[:MAX_SIDE_BY_SIDE]:
            best = read_view(state.database, number, parts=1).best
            asked += [] if best is None else [best.id]
        asked = list(dict.fromkeys(asked))
        known = state.database.get_trials(asked[:MAX_SIDE_BY_SIDE])
        chosen = [number for number in asked[:MAX_SIDE_BY_SIDE] if number in known]
        owners: dict[int, list[int]] = {}
        for number in chosen:
            owners.setdefault(known[number].experiment_id, []).append(number)
        view = _merge(_views(state, owners), chosen) if len(chosen) > 1 else None
        return render(
            request, "across.html", user,
            view=view, compared=None if view is None else compare(view), chosen=chosen,
            missing=[number for number in asked[:MAX_SIDE_BY_SIDE] if number not in known],
            num_left_out=max(0, len(asked) - MAX_SIDE_BY_SIDE),
            experiments={
                number: state.database.get_experiment(known[number].experiment_id)
                for number in chosen
            },
            charts=[] if view is None else page_charts(view),
            legend=svg("" if view is None else legend(view)), max_side_by_side=MAX_SIDE_BY_SIDE,
            is_live=any(one.state.value == "RUNNING" for one in known.values()),
        )  # fmt: skip

    return router


def _views(state: ServerState, owners: Mapping[int, Sequence[int]]) -> list[ExperimentView]:
    """Return a view of each experiment, ranked by the metric of the first one if it has that."""
    views: list[ExperimentView] = []
    for experiment_id, ids in owners.items():
        ingest_reports(state.database, state.settings.environment.home, experiment_id=experiment_id)
        read = functools.partial(
            read_view, state.database, experiment_id, only=ids, all_metrics=True, parts=_PARTS
        )
        first = views[0] if views else None
        try:
            view = (
                read()
                if first is None
                else read(metric=first.metric, smaller_is_better=first.smaller_is_better)
            )
        except NotFoundError:  # it reports other metrics
            view = read()
            none = [
                dataclasses.replace(trial, value=None, value_step=None, last=None, rank=None)
                for trial in view.trials
            ]
            view = dataclasses.replace(view, trials=none)
        views.append(view)
    return views


def _merge(views: Sequence[ExperimentView], chosen: Sequence[int]) -> ExperimentView:
    """Return one view of the trials of several, in the order in which they were chosen."""
    found = {trial.id: trial for view in views for trial in view.trials}
    trials = [
        dataclasses.replace(found[number], number=place, rank=None)
        for place, number in enumerate(number for number in chosen if number in found)
    ]
    curves: dict[tuple[str, str], Chart] = {}
    for view in views:
        for chart in view.charts:
            key = (chart.kind, chart.metric)
            known = curves[key].curves if key in curves else ()
            curves[key] = dataclasses.replace(chart, curves=[*known, *chart.curves])
    return dataclasses.replace(
        views[0], trials=trials, charts=list(curves.values()), num_trials=len(trials)
    )
