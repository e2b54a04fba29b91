"""Trials: lists, single trials, workloads, and metrics as streams."""

from __future__ import annotations

import collections
import datetime
import functools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any

from fastapi import Query, Response
from fastapi.responses import StreamingResponse
from pydantic import Field

from detcore.records import MetricRecord, TrialRecord, TrialSummary
from detcore.types import ExperimentState, TrialState
from detcore_determined.routes import enums
from detcore_determined.routes.record_documents import (
    checkpoint_workload,
    metrics_workload,
    trial_document,
)
from detcore_determined.routes.response_models import (
    STREAM_TYPE,
    Document,
    Part,
    answer,
    answer_page,
    as_float,
    line,
    lines_answer,
    moment,
    new_router,
)
from detcore_server import Requester
from detcore_server.routes import Id, ServerState, State

_OVER = (TrialState.COMPLETED, TrialState.CANCELED, TrialState.ERROR)
_NEVER = datetime.datetime.max.replace(tzinfo=datetime.timezone.utc)
_Order = Annotated[enums.Order, Query(alias="orderBy")]
_TrialSort = Annotated[enums.TrialSort, Query(alias="sortBy")]

_KINDS = ("training", "validation")
_REPORTS_PER_LINE = 500
_TrialIds = Annotated[
    list[Annotated[int, Field(ge=1, le=2**31 - 1)]],
    Query(alias="trialIds", min_length=1, max_length=1000),
]

router = new_router()


@router.get("/api/v1/experiments/{experiment_id}/trials")
def list_trials(
    state: State,
    _: Requester,
    experiment_id: Id,
    part: Part,
    sort_by: _TrialSort = enums.TrialSort.UNSPECIFIED,
    order_by: _Order = enums.Order.UNSPECIFIED,
) -> Response:
    """List the trials of an experiment, by default sorted by id."""
    state.ingest_reports(experiment_id)
    records = _sort_trials(
        state, experiment_id, state.database.list_trials(experiment_id), sort_by, order_by
    )
    describe = functools.partial(_documents, state, experiment_id)
    return answer_page("trials", records, describe, part)


@router.get("/api/v1/trials/{trial_id}")
def get_trial(state: State, _: Requester, trial_id: Id) -> Response:
    """Return a trial, with a summary of its metrics."""
    return answer({"trial": _one(state, trial_id)})


@router.post("/api/v1/trials/{trial_id}/kill")
def kill_trial(state: State, requester: Requester, trial_id: Id) -> Response:
    """Kill a trial immediately. This has no effect after its end."""
    trial = state.database.get_trial(trial_id)
    state.jobs.require_owner(requester, trial.experiment_id)
    if trial.state not in _OVER:
        state.jobs.control_trial(requester, trial_id, "kill")
    return answer({})


@router.get("/api/v1/trials/{trial_id}/workloads")
def list_workloads(
    state: State,
    _: Requester,
    trial_id: Id,
    part: Part,
    with_batches: Annotated[bool, Query(alias="includeBatchMetrics")] = False,
    order_by: _Order = enums.Order.UNSPECIFIED,
) -> Response:
    """List reports and checkpoints of a trial by steps."""
    state.ingest_reports(state.database.get_trial(trial_id).experiment_id, trial_id)
    workloads = _list_workloads(state, trial_id, with_batches=with_batches)
    if order_by is enums.Order.DESC:
        workloads.reverse()
    return answer_page("workloads", workloads, list, part)


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


def _add_stream(kind: str) -> None:
    @router.get(
        f"/api/v1/trials/metrics/{kind}_metrics",
        operation_id=f"determined_stream_{kind}",
        response_class=StreamingResponse,
        responses=lines_answer(),
    )
    def stream_kind(state: State, _: Requester, trial_ids: _TrialIds) -> Response:
        """Stream the reports of one kind of trials, by their steps."""
        return _stream(state, trial_ids, kind)


for kind in _KINDS:
    _add_stream(kind)


@router.get("/api/v1/checkpoints/{uuid}/metrics")
def list_checkpoint_metrics(state: State, _: Requester, uuid: str) -> Response:
    """List reports of other trials on a checkpoint: detcore records none."""
    state.database.get_checkpoint(uuid)
    return answer({"metrics": []})


def _documents(
    state: ServerState, experiment_id: int, records: Sequence[TrialRecord]
) -> list[Document]:
    experiment, is_alive = state.database.observe_experiment(experiment_id)
    is_running = experiment.state is ExperimentState.RUNNING and is_alive
    if not is_running:  # trials may have ended since they were read
        now = state.database.get_trials([record.id for record in records])
        records = [now.get(record.id, record) for record in records]
    summaries = _summarize_trials(state, experiment_id, [record.id for record in records])
    return [
        trial_document(record, summaries.get(record.id), is_running=is_running)
        for record in records
    ]


def _summarize_trials(
    state: ServerState, experiment_id: int, trial_ids: list[int]
) -> dict[int, TrialSummary]:
    if not trial_ids:
        return {}
    searcher = state.database.get_experiment(experiment_id).searcher
    return state.database.summarize_trials(
        experiment_id,
        metric=searcher.metric,
        smaller_is_better=searcher.smaller_is_better is not False,
        trial_ids=trial_ids,
    )


def _one(state: ServerState, trial_id: int) -> Document:
    """Return a trial with metrics and checkpoints, which lists do not have."""
    database = state.database
    record = database.get_trial(trial_id)
    state.ingest_reports(record.experiment_id, trial_id)
    (document,) = _documents(state, record.experiment_id, [record])
    training = database.metrics(trial_id, "training", with_batches=False)
    validation = database.metrics(trial_id, "validation", with_batches=False)
    document["summaryMetrics"] = summarize(training, validation)
    return document


def _sort_trials(
    state: ServerState,
    experiment_id: int,
    records: list[TrialRecord],
    sort_by: enums.TrialSort,
    order_by: enums.Order,
) -> list[TrialRecord]:
    """Return trials in the requested order; trials without a value of the sort key are last."""
    sort = enums.TrialSort
    summaries: dict[int, TrialSummary] = {}
    if sort_by in (sort.BEST_VALIDATION_METRIC, sort.BATCHES_PROCESSED):
        summaries = _summarize_trials(state, experiment_id, [record.id for record in records])
    metric = state.database.get_experiment(experiment_id).searcher.metric
    latest: dict[int, float | None] = {}
    if sort_by is sort.LATEST_VALIDATION_METRIC and metric is not None:
        latest = {
            record.id: _find_latest_validation(state, record.id, metric) for record in records
        }
    sizes: dict[int, int] = collections.Counter()
    if sort_by is sort.CHECKPOINT_SIZE:
        for checkpoint in state.database.list_checkpoints(experiment_id=experiment_id):
            sizes[checkpoint.trial_id] += checkpoint.size_bytes

    def best(record: TrialRecord) -> Any:
        checkpoint = summaries[record.id].best
        return None if checkpoint is None or metric is None else checkpoint.metrics[metric]

    keys: Mapping[enums.TrialSort, Callable[[TrialRecord], Any]] = {
        sort.ID: lambda record: record.id,
        sort.END_TIME: lambda record: record.ended_at,
        sort.STATE: lambda record: record.state.value,
        sort.LATEST_VALIDATION_METRIC: lambda record: latest.get(record.id),
        sort.CHECKPOINT_SIZE: lambda record: sizes.get(record.id, 0),
        sort.BEST_VALIDATION_METRIC: best,
        sort.BATCHES_PROCESSED: lambda record: summaries[record.id].steps_completed,
        sort.DURATION: lambda record: (record.ended_at or _NEVER) - record.created_at,
        sort.RESTARTS: lambda record: record.num_restarts,
    }
    key = keys.get(sort_by) or keys[sort.ID]
    ranked = [record for record in records if key(record) is not None]
    ranked.sort(key=lambda record: (key(record), record.id))
    if order_by is enums.Order.DESC:
        ranked.reverse()
    return ranked + [record for record in records if key(record) is None]


def _find_latest_validation(state: ServerState, trial_id: int, metric: str) -> float | None:
    """Return a metric of a trial's last validation; None for NaN and other types."""
    reports = state.database.metrics(trial_id, "validation", with_batches=False, newest=1)
    value = as_float(reports[0].metrics.get(metric)) if reports else None
    return None if value is None or math.isnan(value) else value


def _list_workloads(state: ServerState, trial_id: int, *, with_batches: bool) -> list[Document]:
    """Return a trial's workloads by steps; at each step training, validation, checkpoint."""
    workloads: list[tuple[int, int, Document]] = []
    for place, kind in enumerate(("training", "validation")):
        for record in state.database.metrics(trial_id, kind, with_batches=with_batches):
            document = metrics_workload(record, with_batches=with_batches)
            workloads.append((record.steps_completed, place, {kind: document}))
    for checkpoint in state.database.list_checkpoints(trial_id=trial_id):
        document = {"checkpoint": checkpoint_workload(checkpoint)}
        workloads.append((checkpoint.steps_completed, 2, document))
    workloads.sort(key=lambda entry: entry[:2])
    return [document for _, _, document in workloads]


def summarize(training: Iterable[MetricRecord], validation: Iterable[MetricRecord]) -> Document:
    """Return count, extremes, sum, mean and last value of each metric."""
    return {
        "avg_metrics": _group_reports(training),
        "validation_metrics": _group_reports(validation),
    }


def _group_reports(records: Iterable[MetricRecord]) -> Document:
    groups: Document = {}
    for record in records:
        for name, value in record.metrics.items():
            _add(groups.setdefault(name, {"count": 0, "type": _type(value)}), value)
    for summary in groups.values():
        if "sum" in summary:
            summary["mean"] = summary["sum"] / summary["count"]
    return groups


def _add(summary: Document, value: Any) -> None:
    summary["last"] = value
    kind = _type(value)
    if kind != summary["type"]:
        summary["type"] = "string"
    summary["count"] += 1
    if kind != "number":
        return
    summary["sum"] = summary.get("sum", 0.0) + float(value)
    if not math.isnan(value):
        summary["min"] = min(summary.get("min", value), value)
        summary["max"] = max(summary.get("max", value), value)


def _type(value: object) -> str:
    if isinstance(value, bool):
        return "boolean"
    if as_float(value) is not None:
        return "number"
    if isinstance(value, list):
        return "array"
    if isinstance(value, dict):
        return "object"
    return "null" if value is None else "string"


def _stream(state: ServerState, trial_ids: Sequence[int], group: str) -> Response:
    owners = {number: state.database.get_trial(number).experiment_id for number in trial_ids}
    for number, owner in owners.items():
        state.ingest_reports(owner, number)
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
