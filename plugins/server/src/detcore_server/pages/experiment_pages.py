"""Experiment pages: curves, hyperparameters, comparison, checkpoints and configuration."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

from fastapi import APIRouter, Form, HTTPException, Query, Request, Response
from fastapi.responses import RedirectResponse
from pydantic import BaseModel

from detcore.client.http import answer_read
from detcore.record_descriptions import (
    can_resume,
    describe_experiment,
    describe_state,
    get_duration_s,
    metric_value,
    summarize_config,
)
from detcore.types import TrialState
from detcore_report import (
    draw_parallel,
    draw_scatters,
    importance_table,
    legend,
    read_view,
    select_trials,
    trial_classes,
)
from detcore_server.api.client_models import Action
from detcore_server.pages.compare_pages import MAX_SIDE_BY_SIDE, Numbers, compare_trials
from detcore_server.pages.lineage import find_ancestors
from detcore_server.pages.list_pages import Paging
from detcore_server.pages.page_charts import page_charts
from detcore_server.pages.render import DescriptionForm, render
from detcore_server.pages.running_experiment import read_now
from detcore_server.pages.trial_groups import group_choices, group_trials
from detcore_server.pages.trial_log import Traceback, last_traceback, read_tail
from detcore_server.pages.trial_table import TrialTable, make_table, table_csv
from detcore_server.pages.verification import READABLE
from detcore_server.users.authentication import Id, PageUser, State

if TYPE_CHECKING:
    from detcore.records import TrialRecord
    from detcore_report import ExperimentView
    from detcore_server.server_database import TokenRecord
    from detcore_server.server_state import ServerState


_CHECKPOINTS_SHOWN = 100
_MAX_ROWS = 200
_Page = Annotated[int, Query(ge=1, le=10**6)]


class _MetricQuery(BaseModel):
    """Metric that ranks the trials, or "" for the searcher's metric."""

    metric: str = ""
    better: Literal["", "smaller", "larger"] = ""


class _FilterQuery(_MetricQuery):
    """Metric and trial filter."""

    where: str = ""


class _TableQuery(_FilterQuery):
    """Metric, filter and format of the trial table."""

    sort: str = ""
    column: list[str] = []
    group: str = ""


_AS_SEARCHED = _MetricQuery()
_Table = Annotated[_TableQuery, Query()]


router = APIRouter(prefix="/ui/experiments/{experiment_id}")


@router.get("")
def show_curves(
    request: Request,
    state: State,
    user: PageUser,
    experiment_id: Id,
    params: _Table,
) -> Response:
    # The page shows only the best of many trials, but filters and groups use all trials.
    max_rows = None if params.where or params.sort or params.group else _MAX_ROWS
    view = _read(state, experiment_id, params, max_rows=max_rows)
    classes = trial_classes(view)
    head = _head(state, user, view)
    failed = state.database.list_trials(experiment_id, states=[TrialState.ERROR])
    groups = group_trials(view, params.group)
    return render(
        request, "curves.html", tab="curves", **head,
        now=(
            read_now(state.database, view, state.settings.environment.home)
            if head["is_live"] else None
        ),
        failed=failed, traceback=_last_failure(view, failed),
        table=make_table(view, where=params.where, sort=params.sort, chosen=params.column),
        others=[
            (key, value) for key, value in request.query_params.multi_items()
            if key not in ("where", "sort", "column")
        ],
        groups=groups, group=params.group, group_choices=group_choices(view),
        notes=view.record.notes,
        charts=page_charts(view, groups=groups), legend=legend(view),
        view=view,
        colours={trial: name.split()[1] for trial, name in classes.items()},
        summary=summarize_config(_read_masked_config(state, experiment_id)),
        max_side_by_side=MAX_SIDE_BY_SIDE,
    )  # fmt: skip


@router.get("/trials.csv")
def get_trials(
    state: State,
    experiment_id: Id,
    params: _Table,
) -> Response:
    view = _read(state, experiment_id, params, max_rows=None)
    table = make_table(
        view, where=params.where, sort=params.sort, chosen=params.column, max_rows=None
    )
    if table.error is not None:
        raise HTTPException(422, table.error)
    name = f"experiment-{experiment_id}-trials.csv"
    disposition = {"Content-Disposition": f'attachment; filename="{name}"'}
    return Response(table_csv(table), media_type="text/csv", headers=disposition)


@router.get("/hyperparameters")
def show_hyperparameters(
    request: Request,
    state: State,
    user: PageUser,
    experiment_id: Id,
    params: Annotated[_FilterQuery, Query()],
) -> Response:
    full_view, table, view = _read_filtered(state, experiment_id, params)
    return render(
        request, "hyperparameters.html", tab="hyperparameters",
        **_head(state, user, full_view), view=view, legend=legend(view), table=table,
        importance=importance_table(full_view), params=params,
        scatters=draw_scatters(view), parallel=draw_parallel(view),
    )  # fmt: skip


@router.get("/compare")
def show_side_by_side(
    request: Request,
    state: State,
    user: PageUser,
    experiment_id: Id,
    trial: Numbers = [],  # noqa: B006  (FastAPI copies it)
) -> Response:
    """Compare trials of the experiment."""
    full_view = _read(state, experiment_id)
    return render(
        request, "compare.html", tab="compare", **_head(state, user, full_view),
        full_view=full_view, **compare_trials(state, trial, experiment_id),
    )  # fmt: skip


@router.get("/checkpoints")
def show_checkpoints(
    request: Request, state: State, user: PageUser, experiment_id: Id, page: _Page = 1
) -> Response:
    head = _read_head(state, user, experiment_id)
    database = state.database
    records = database.list_checkpoints(experiment_id=experiment_id)[::-1]
    metric = head["row"]["metric"]
    values = {} if metric is None else database.checkpoint_metrics(experiment_id, metric)
    paging = Paging(page, _CHECKPOINTS_SHOWN, len(records))
    return render(
        request, "checkpoints.html", tab="checkpoints", **head,
        checkpoints=[
            (record, values.get(record.uuid))
            for record in records[paging.offset : paging.offset + _CHECKPOINTS_SHOWN]
        ],
        metric=metric, paging=paging, verifier=state.verifier,
        kept_bytes=sum(record.size_bytes for record in records if record.state in READABLE),
        ancestors=find_ancestors(database, database.get_experiment(experiment_id)),
    )  # fmt: skip


@router.get("/configuration")
def show_configuration(
    request: Request, state: State, user: PageUser, experiment_id: Id
) -> Response:
    import yaml

    head = _read_head(state, user, experiment_id)
    return render(
        request, "configuration.html", tab="configuration", **head,
        record=state.database.get_experiment(experiment_id),
        config=yaml.safe_dump(
            _read_masked_config(state, experiment_id), sort_keys=False, allow_unicode=True
        ),
    )  # fmt: skip


@router.post("/control")
def control(
    state: State,
    user: PageUser,
    experiment_id: Id,
    action: Annotated[Action, Form()],
) -> Response:
    state.jobs.control(user, experiment_id, action)
    return RedirectResponse(f"/ui/experiments/{experiment_id}", 303)


@router.post("/describe")
def describe(
    state: State,
    user: PageUser,
    experiment_id: Id,
    written: DescriptionForm,
) -> Response:
    state.jobs.require_owner(user, experiment_id)
    state.database.describe_experiment(
        experiment_id, labels=written.label_list(), notes=written.plain_notes()
    )
    return RedirectResponse(f"/ui/experiments/{experiment_id}#notes", 303)


def _read(
    state: ServerState,
    experiment_id: int,
    params: _MetricQuery = _AS_SEARCHED,
    *,
    max_rows: int | None = _MAX_ROWS,
) -> ExperimentView:
    """Read an experiment with all reports so far."""
    database = state.database
    state.ingest_reports(experiment_id)
    return read_view(
        database, experiment_id, metric=params.metric or None,
        smaller_is_better={"smaller": True, "larger": False}.get(params.better),
        max_rows=max_rows,
    )  # fmt: skip


def _read_filtered(
    state: ServerState, experiment_id: int, params: _FilterQuery
) -> tuple[ExperimentView, TrialTable, ExperimentView]:
    """Return an experiment, its filtered trials, and the filtered trials to draw."""
    full_view = _read(state, experiment_id, params, max_rows=None)
    table = make_table(full_view, where=params.where, max_rows=None)
    return full_view, table, select_trials(full_view, [trial for trial, _ in table.rows])


def _last_failure(
    view: ExperimentView, failed: Sequence[TrialRecord]
) -> tuple[int, Traceback] | None:
    """Return the trial that failed last and its traceback."""
    if not failed:
        return None
    last = max(failed, key=lambda one: (one.ended_at or one.created_at, one.id))
    traceback = last_traceback(read_tail(last), view.record.model_dir)
    return None if traceback is None else (last.id, traceback)


def _read_head(state: ServerState, user: TokenRecord, experiment_id: int) -> dict[str, Any]:
    database = state.database
    state.ingest_reports(experiment_id)
    record = database.get_experiment(experiment_id)
    num_trials = len(database.list_trials(experiment_id))
    return _head_values(
        state, user, describe_experiment(database, record, num_trials), record.config
    )


def _head(state: ServerState, user: TokenRecord, view: ExperimentView) -> dict[str, Any]:
    head = _head_values(state, user, dict(view.overview), view.record.config)
    best = view.best
    head["best"] = None
    if best is not None:
        head["best"] = {"trial": best.id, "value": best.value, "step": best.value_step,
                        "metric": view.metric}  # fmt: skip
    return head


def _head_values(
    state: ServerState, user: TokenRecord, row: dict[str, Any], config: Any
) -> dict[str, Any]:
    """Return the template values of an experiment's page head."""
    value = metric_value(row, row["metric"])
    best = None
    if value is not None:
        validation = row["best_validation"]
        best = {
            "trial": validation["trial_id"],
            "value": value,
            "step": validation["steps_completed"],
            "metric": row["metric"],
        }
    submission = state.database.get_submission(row["id"])
    is_queued = submission is not None and submission.phase == "QUEUED"
    is_starting = submission is not None and submission.phase == "STARTED"
    running = row["state"] == "RUNNING" and row["is_alive"]
    can_stop = row["state"] == "RUNNING" and not config.get("is_standalone")
    return {
        "row": row,
        "submission": submission,
        "state_text": (
            "queued" if is_queued else describe_state(row["state"], is_alive=row["is_alive"])
        ),
        "took": get_duration_s(row),
        "best": best,
        "labels": [str(text) for text in config.get("labels") or ()],
        "may_control": state.jobs.may_control(user, row["id"]),
        "can_stop": can_stop or is_queued,
        "can_activate": (
            not (is_queued or is_starting)
            and can_resume(config, row["state"], is_alive=row["is_alive"])
        ),
        "is_live": running or is_queued or is_starting,
    }


def _read_masked_config(state: ServerState, experiment_id: int) -> Any:
    """Return the configuration of an experiment with masked secrets."""
    record = answer_read(state.database, "get_experiment", {"experiment_id": experiment_id})
    return record["config"]
