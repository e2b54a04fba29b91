"""Trials: lists, single trials, and their workloads."""

from __future__ import annotations

import collections
import datetime
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Query, Response

from detcore.database import MetricRecord, TrialRecord, TrialSummary
from detcore.types import ExperimentState, TrialState, searcher_metric
from detcore_determined._routes import _enums
from detcore_determined._routes._answers import (
    Document,
    Limit,
    Offset,
    answer,
    as_float,
    new_router,
    page,
    part,
)
from detcore_determined._routes._documents import (
    checkpoint_workload,
    known_states,
    metrics_workload,
    take_in,
    trial_document,
)
from detcore_server import Requester
from detcore_server.routes import Id, ServerState, State

_OVER = (TrialState.COMPLETED, TrialState.CANCELED, TrialState.ERROR)
_NEVER = datetime.datetime.max.replace(tzinfo=datetime.timezone.utc)
_Order = Annotated[_enums.Order, Query(alias="orderBy")]
_TrialSort = Annotated[_enums.TrialSort, Query(alias="sortBy")]


def make_router() -> APIRouter:
    """Return the routes of this part."""
    router = new_router()

    @router.get("/api/v1/experiments/{experiment_id}/trials")
    def list_trials(
        state: State,
        _: Requester,
        experiment_id: Id,
        states: Annotated[list[_enums.State], Query(max_length=100)] = [],  # noqa: B006  (FastAPI copies it)
        sort_by: _TrialSort = _enums.TrialSort.UNSPECIFIED,
        order_by: _Order = _enums.Order.UNSPECIFIED,
        limit: Limit = 0,
        offset: Offset = 0,
    ) -> Response:
        """List the trials of an experiment, by default sorted by id."""
        take_in(state, experiment_id)
        wanted = known_states(states)
        records, total, start, end = _select(
            state, experiment_id, wanted, sort_by, order_by, limit=limit, offset=offset
        )
        where = page(total, start, end, limit=limit, offset=offset)
        shown = _documents(state, experiment_id, records)
        return answer({"trials": shown, "pagination": where})

    @router.get("/api/v1/trials/{trial_id}")
    def get_trial(state: State, _: Requester, trial_id: Id) -> Response:
        """Return a trial, with a summary of its metrics."""
        return answer({"trial": _one(state, trial_id)})

    @router.post("/api/v1/trials/{trial_id}/kill")
    def kill_trial(state: State, requester: Requester, trial_id: Id) -> Response:
        """End a trial at once; without effect if it is over."""
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
        kind: Annotated[_enums.WorkloadFilter, Query(alias="filter")] = (
            _enums.WorkloadFilter.UNSPECIFIED
        ),
        group: str = "",
        with_batches: Annotated[bool, Query(alias="includeBatchMetrics")] = False,
        order_by: _Order = _enums.Order.UNSPECIFIED,
        without_deleted: Annotated[bool, Query(alias="removeDeletedCheckpoints")] = False,
        limit: Limit = 0,
        offset: Offset = 0,
    ) -> Response:
        """List reports and checkpoints of a trial by steps."""
        take_in(state, state.database.get_trial(trial_id).experiment_id, trial_id)
        wanted = _kinds(kind, group)
        found = _workloads(
            state, trial_id, wanted, with_batches=with_batches, without_deleted=without_deleted
        )
        if order_by is _enums.Order.DESC:
            found.reverse()
        start, end = part(len(found), limit, offset)
        where = page(len(found), start, end, limit=limit, offset=offset)
        return answer({"workloads": found[start:end], "pagination": where})

    return router


def _select(
    state: ServerState,
    experiment_id: int,
    states: list[TrialState] | None,
    sort_by: _enums.TrialSort,
    order_by: _enums.Order,
    *,
    limit: int,
    offset: int,
) -> tuple[list[TrialRecord], int, int, int]:
    """Return the wanted part of the list, how long it is, and where the part begins and ends."""
    database = state.database
    sort = _enums.TrialSort
    if states is None and sort_by in (sort.UNSPECIFIED, sort.ID, sort.START_TIME):
        # The database sorts and pages where it can: there may be thousands of trials.
        total = database.count_trials().get(experiment_id, 0)
        start, end = part(total, limit, offset)
        if start == end:
            return [], total, start, end
        is_descending = order_by is _enums.Order.DESC
        records = database.list_trials(
            experiment_id, newest_first=is_descending, limit=end - start, offset=start
        )
        return records, total, start, end
    records = database.list_trials(experiment_id)
    if states is not None:
        records = [record for record in records if record.state in states]
    records = _sorted(state, experiment_id, records, sort_by, order_by)
    start, end = part(len(records), limit, offset)
    return records[start:end], len(records), start, end


def _documents(
    state: ServerState, experiment_id: int, records: Sequence[TrialRecord]
) -> list[Document]:
    experiment, is_alive = state.database.observe_experiment(experiment_id)
    is_running = experiment.state is ExperimentState.RUNNING and is_alive is not False
    if not is_running:  # they may have ended since they were read
        now = state.database.get_trials([record.id for record in records])
        records = [now.get(record.id, record) for record in records]
    metric, _ = searcher_metric(experiment.config)
    summaries = _summaries(state, experiment_id, [record.id for record in records])
    return [
        trial_document(record, summaries.get(record.id), metric=metric, is_running=is_running)
        for record in records
    ]


def _summaries(
    state: ServerState, experiment_id: int, trial_ids: list[int]
) -> dict[int, TrialSummary]:
    if not trial_ids:
        return {}
    config = state.database.get_experiment(experiment_id).config
    metric, smaller_is_better = searcher_metric(config)
    return state.database.summarize_trials(
        experiment_id, metric=metric, smaller_is_better=smaller_is_better, trial_ids=trial_ids
    )


def _one(state: ServerState, trial_id: int) -> Document:
    """Return a trial with the values that lists do not have: metrics and checkpoints."""
    database = state.database
    record = database.get_trial(trial_id)
    take_in(state, record.experiment_id, trial_id)
    (document,) = _documents(state, record.experiment_id, [record])
    training = database.metrics(trial_id, "training", with_batches=False)
    validation = database.metrics(trial_id, "validation", with_batches=False)
    document["summaryMetrics"] = summarize(training, validation)
    if validation:
        document["latestValidation"] = metrics_workload(validation[-1])
    checkpoints = database.list_checkpoints(trial_id=trial_id)
    document["checkpointCount"] = len(checkpoints)
    document["totalCheckpointSize"] = str(sum(found.size_bytes for found in checkpoints))
    metric, smaller_is_better = searcher_metric(
        database.get_experiment(record.experiment_id).config
    )
    if metric is not None:
        best = database.top_checkpoints(
            trial_id=trial_id, metric=metric, smaller_is_better=smaller_is_better, limit=1
        )
        if best and best[0].value is not None:
            document["bestCheckpoint"] = checkpoint_workload(best[0].checkpoint)
    return document


def _sorted(
    state: ServerState,
    experiment_id: int,
    records: list[TrialRecord],
    sort_by: _enums.TrialSort,
    order_by: _enums.Order,
) -> list[TrialRecord]:
    """Return trials in the wanted order; those without a value of the sort key are last."""
    sort = _enums.TrialSort
    summaries: dict[int, TrialSummary] = {}
    if sort_by in (sort.BEST_VALIDATION_METRIC, sort.BATCHES_PROCESSED):
        summaries = _summaries(state, experiment_id, [record.id for record in records])
    metric, _ = searcher_metric(state.database.get_experiment(experiment_id).config)
    latest: dict[int, float | None] = {}
    if sort_by is sort.LATEST_VALIDATION_METRIC and metric is not None:
        latest = {record.id: _latest(state, record.id, metric) for record in records}
    sizes: dict[int, int] = collections.Counter()
    if sort_by is sort.CHECKPOINT_SIZE:
        for found in state.database.list_checkpoints(experiment_id=experiment_id):
            sizes[found.trial_id] += found.size_bytes

    def best(record: TrialRecord) -> Any:
        found = summaries[record.id].best
        return None if found is None or metric is None else found.metrics[metric]

    keys: Mapping[_enums.TrialSort, Callable[[TrialRecord], Any]] = {
        sort.END_TIME: lambda record: record.ended_at,
        sort.STATE: lambda record: record.state.value,
        sort.LATEST_VALIDATION_METRIC: lambda record: latest.get(record.id),
        sort.CHECKPOINT_SIZE: lambda record: sizes.get(record.id, 0),
        sort.BEST_VALIDATION_METRIC: best,
        sort.BATCHES_PROCESSED: lambda record: summaries[record.id].steps_completed,
        sort.DURATION: lambda record: (record.ended_at or _NEVER) - record.created_at,
        sort.RESTARTS: lambda record: record.num_restarts,
    }
    key = keys.get(sort_by, _number)
    known = [record for record in records if key(record) is not None]
    known.sort(key=lambda record: (key(record), record.id))
    if order_by is _enums.Order.DESC:
        known.reverse()
    return known + [record for record in records if key(record) is None]


def _latest(state: ServerState, trial_id: int, metric: str) -> float | None:
    """Return a metric of a trial's last validation; None for NaN and other types."""
    found = state.database.metrics(trial_id, "validation", with_batches=False, newest=1)
    value = as_float(found[0].metrics.get(metric)) if found else None
    return None if value is None or math.isnan(value) else value


def _number(record: TrialRecord) -> int:
    return record.id


def _kinds(kind: _enums.WorkloadFilter, group: str) -> tuple[str, ...]:
    wanted = {
        _enums.WorkloadFilter.UNSPECIFIED: ("training", "validation", "checkpoint"),
        _enums.WorkloadFilter.CHECKPOINT: ("checkpoint",),
        _enums.WorkloadFilter.VALIDATION: ("validation",),
        _enums.WorkloadFilter.CHECKPOINT_OR_VALIDATION: ("validation", "checkpoint"),
    }[kind]
    return tuple(name for name in wanted if not group or name in (group, "checkpoint"))


def _workloads(
    state: ServerState,
    trial_id: int,
    kinds: Sequence[str],
    *,
    with_batches: bool,
    without_deleted: bool,
) -> list[Document]:
    """Return a trial's workloads by steps; at each step training, validation, checkpoint."""
    found: list[tuple[int, int, Document]] = []
    for place, kind in enumerate(("training", "validation")):
        if kind in kinds:
            found.extend(
                (record.steps_completed, place,
                 {kind: metrics_workload(record, with_batches=with_batches)})
                for record in state.database.metrics(trial_id, kind, with_batches=with_batches)
            )  # fmt: skip
    if "checkpoint" in kinds:
        for record in state.database.list_checkpoints(trial_id=trial_id):
            workload = checkpoint_workload(record)
            if not (without_deleted and workload["state"] == "STATE_DELETED"):
                found.append((record.steps_completed, 2, {"checkpoint": workload}))
    found.sort(key=lambda entry: entry[:2])
    return [document for _, _, document in found]


def summarize(training: Iterable[MetricRecord], validation: Iterable[MetricRecord]) -> Document:
    """Return count, extremes, sum, mean and last value of each metric, as clients read them."""
    return {"avg_metrics": _group(training), "validation_metrics": _group(validation)}


def _group(records: Iterable[MetricRecord]) -> Document:
    found: Document = {}
    for record in records:
        for name, value in record.metrics.items():
            _add(found.setdefault(name, {"count": 0, "type": _type(value)}), value)
    for summary in found.values():
        if "sum" in summary:
            summary["mean"] = summary["sum"] / summary["count"]
    return found


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
