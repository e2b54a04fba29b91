"""Metrics of trials as streams of results, one a line."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated

from fastapi import APIRouter, Query, Response
from fastapi.responses import StreamingResponse
from pydantic import Field

from detcore.database import MetricRecord
from detcore_determined._routes._answers import (
    STREAM_TYPE,
    Document,
    answer,
    line,
    lines_answer,
    moment,
    new_router,
)
from detcore_determined._routes._documents import take_in
from detcore_server import Requester
from detcore_server.routes import ServerState, State

_KINDS = ("training", "validation")
_REPORTS_PER_LINE = 500
_TrialIds = Annotated[
    list[Annotated[int, Field(ge=1, le=2**31 - 1)]],
    Query(alias="trialIds", min_length=1, max_length=1000),
]


def make_router() -> APIRouter:
    """Return the routes of this part."""
    router = new_router()

    @router.get(
        "/api/v1/trials/metrics/trial_metrics",
        response_class=StreamingResponse,
        responses=lines_answer(),
    )
    def stream_metrics(
        state: State, _: Requester, trial_ids: _TrialIds, group: Annotated[str, Query(min_length=1)]
    ) -> Response:
        """Stream the reports of trials, by their steps."""
        return _stream(state, trial_ids, group)

    for kind in _KINDS:
        _add_stream(router, kind)

    @router.get("/api/v1/checkpoints/{uuid}/metrics")
    def list_checkpoint_metrics(state: State, _: Requester, uuid: str) -> Response:
        """List reports of other trials on a checkpoint: detcore records none."""
        state.database.get_checkpoint(uuid)
        return answer({"metrics": []})

    return router


def _add_stream(router: APIRouter, kind: str) -> None:
    @router.get(
        f"/api/v1/trials/metrics/{kind}_metrics",
        operation_id=f"determined_stream_{kind}",
        response_class=StreamingResponse,
        responses=lines_answer(),
    )
    def stream_kind(state: State, _: Requester, trial_ids: _TrialIds) -> Response:
        """Stream the reports of one kind of trials, by their steps."""
        return _stream(state, trial_ids, kind)


def _stream(state: ServerState, trial_ids: Sequence[int], group: str) -> Response:
    owners = {number: state.database.get_trial(number).experiment_id for number in trial_ids}
    for number, owner in owners.items():
        take_in(state, owner, number)
    return StreamingResponse(_lines(state, list(owners), group), media_type=STREAM_TYPE)


def _lines(state: ServerState, trial_ids: Sequence[int], group: str) -> Iterator[bytes]:
    if group not in _KINDS:
        return  # detcore has two kinds of reports
    for trial_id in trial_ids:
        records = state.database.metrics(trial_id, group)
        for start in range(0, len(records), _REPORTS_PER_LINE):
            part = records[start : start + _REPORTS_PER_LINE]
            reports = [
                _report(record, group, start + place) for place, record in enumerate(part, 1)
            ]
            yield line({"metrics": reports})


def _report(record: MetricRecord, group: str, number: int) -> Document:
    key = "validation_metrics" if group == "validation" else "avg_metrics"
    metrics: Document = {key: dict(record.metrics)}
    if record.batch_metrics is not None:
        metrics["batch_metrics"] = [dict(batch) for batch in record.batch_metrics]
    return {
        "id": number,
        "trialId": record.trial_id,
        "trialRunId": record.run_id,
        "totalBatches": record.steps_completed,
        "endTime": moment(record.reported_at),
        "group": group,
        "metrics": metrics,
        "archived": False,
    }
