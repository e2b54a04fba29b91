"""Trial pages: curves, checkpoints and the log with search and levels."""

from __future__ import annotations

import urllib.parse
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Literal

from fastapi import APIRouter, Form, Query, Request, Response
from fastapi.responses import RedirectResponse

from detcore.records import list_resumes
from detcore_report import read_activities, read_view
from detcore_server.pages.lineage import find_ancestors, run_origins
from detcore_server.pages.page_charts import page_charts
from detcore_server.pages.render import DescriptionForm, render
from detcore_server.pages.trial_log import last_traceback, read_back, read_tail
from detcore_server.users.authentication import Id, PageUser, State

if TYPE_CHECKING:
    from detcore.records import CheckpointRecord, Database, MetricRecord


_MAX_CHARTS = 12
_REPORTS_SHOWN = 10

router = APIRouter()


@router.get("/ui/trials/{trial_id}")
def show_trial(request: Request, state: State, user: PageUser, trial_id: Id) -> Response:
    database = state.database
    record = database.get_trial(trial_id)
    state.ingest_reports(record.experiment_id, trial_id)
    view = read_view(
        database, record.experiment_id, all_metrics=True, max_charts=_MAX_CHARTS,
        only=[trial_id],
    )  # fmt: skip
    trial = view.trials[0]
    log = read_tail(record)
    records, runs = database.list_checkpoints(trial_id=trial_id), database.list_runs(trial_id)
    is_running = record.state.value == "RUNNING"
    return render(
        request, "trial.html",
        record=record, trial=trial, view=view, charts=page_charts(view),
        log=log,
        traceback=last_traceback(log, view.record.model_dir) if record.error else None,
        activity=next(
            iter(read_activities(database, view.record, only=trial_id) if is_running else ()),
            None,
        ),
        may_control=state.jobs.may_control(user, record.experiment_id),
        reports={
            kind: _last_reports(database, trial_id, kind)
            for kind in ("validation", "training")
        },
        runs=runs, run_origins=run_origins(runs, records),
        resumes=list_resumes(database.events(trial_id, "resume_compared")),
        ancestors=find_ancestors(database, view.record),
        checkpoints=_list_checkpoints(database, records, view.metric, record.experiment_id),
        verifier=state.verifier,
        is_live=view.record.state.value == "RUNNING" and record.state.value != "COMPLETED",
    )  # fmt: skip


@router.get("/ui/trials/{trial_id}/log")
def show_log(
    request: Request,
    state: State,
    trial_id: Id,
    find: str = "",
    level: Literal["", "info", "warning", "error"] = "",
    before: Annotated[int | None, Query(ge=0, le=2**62)] = None,
) -> Response:
    record = state.database.get_trial(trial_id)
    lines, start = read_back(record, before=before, find=find, level=level)
    params = {"find": find, "level": level}
    return render(
        request, "log.html",
        record=record, lines=lines, start=start, before=before, params=params,
        query=urllib.parse.urlencode({key: text for key, text in params.items() if text}),
        experiment=state.database.get_experiment(record.experiment_id),
        is_live=before is None and record.state.value == "RUNNING",
    )  # fmt: skip


@router.post("/ui/trials/{trial_id}/control")
def control(
    state: State,
    user: PageUser,
    trial_id: Id,
    action: Annotated[Literal["cancel", "kill"], Form()],
) -> Response:
    state.jobs.control_trial(user, trial_id, action)
    return RedirectResponse(f"/ui/trials/{trial_id}", 303)


@router.post("/ui/trials/{trial_id}/describe")
def describe(state: State, user: PageUser, trial_id: Id, written: DescriptionForm) -> Response:
    state.jobs.require_owner(user, state.database.get_trial(trial_id).experiment_id)
    state.database.update_trial(trial_id, labels=written.label_list(), notes=written.plain_notes())
    return RedirectResponse(f"/ui/trials/{trial_id}#notes", 303)


def _last_reports(database: Database, trial_id: int, kind: str) -> list[MetricRecord]:
    reports = database.metrics(trial_id, kind, with_batches=False, newest=_REPORTS_SHOWN)
    return reports[::-1]


def _list_checkpoints(
    database: Database,
    saved: Sequence[CheckpointRecord],
    metric: str | None,
    experiment_id: int,
) -> list[tuple[CheckpointRecord, float | None]]:
    values = {} if metric is None else database.checkpoint_metrics(experiment_id, metric)
    return [(record, values.get(record.uuid)) for record in reversed(saved)]
