"""A trial: its curves, log and checkpoints."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from fastapi import APIRouter, Request, Response

from detcore.database import ingest_reports, read_log_page
from detcore_report import read_view
from detcore_server._auth import Id, PageUser, State
from detcore_server._page._charts import page_charts
from detcore_server._page._render import PageRoute, render
from detcore_server._page._verify import Verifier

if TYPE_CHECKING:
    from detcore.database import CheckpointRecord, Database, LogLine, MetricRecord, TrialRecord

__all__ = ["make_router"]

_LOG_LINES = 200
_LOG_BYTES = 200_000
_MAX_CHARTS = 12
_REPORTS_SHOWN = 10


def make_router(verifier: Verifier) -> APIRouter:
    """Return the routes of this part."""
    router = APIRouter(route_class=PageRoute, include_in_schema=False)

    @router.get("/ui/trials/{trial_id}")
    def show_trial(request: Request, state: State, user: PageUser, trial_id: Id) -> Response:
        database = state.database
        record = database.get_trial(trial_id)
        home = state.settings.environment.home
        ingest_reports(database, home, experiment_id=record.experiment_id, trial_id=trial_id)
        view = read_view(
            database, record.experiment_id, all_metrics=True, max_charts=_MAX_CHARTS,
            only=[trial_id], parts=250,
        )  # fmt: skip
        trial = view.trials[0]
        return render(
            request, "trial.html", user,
            record=record, trial=trial, view=view, charts=page_charts(view, points=504),
            log=_last_lines(record),
            reports={
                kind: _last_reports(database, trial_id, kind)
                for kind in ("validation", "training")
            },
            runs=database.list_runs(trial_id),
            checkpoints=_checkpoints(database, trial_id, view.metric, record.experiment_id),
            verifier=verifier,
            is_live=view.record.state.value == "RUNNING" and record.state.value != "COMPLETED",
        )  # fmt: skip

    return router


def _last_reports(database: Database, trial_id: int, kind: str) -> list[MetricRecord]:
    found = database.metrics(trial_id, kind, with_batches=False, newest=_REPORTS_SHOWN)
    return found[::-1]


def _checkpoints(
    database: Database, trial_id: int, metric: str | None, experiment_id: int
) -> list[tuple[CheckpointRecord, float | None]]:
    values = {} if metric is None else database.checkpoint_metrics(experiment_id, metric)
    found = database.list_checkpoints(trial_id=trial_id)
    return [(record, values.get(record.uuid)) for record in reversed(found)]


def _last_lines(trial: TrialRecord) -> list[LogLine]:
    """Return the last lines that a trial's workers printed, without reading all of a long log."""
    if trial.trial_dir is None:
        return []
    folder = Path(trial.trial_dir)
    try:
        size = sum(path.stat().st_size for path in folder.glob("log.jsonl"))
        # The line that this begins in the middle of is left out.
        lines, _ = read_log_page(folder, max(0, size - _LOG_BYTES))
    except OSError:
        return []
    return lines[-_LOG_LINES:]
