"""Checkpoints: lists, metadata, downloads, and deletion."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any

from fastapi import Query, Response
from fastapi.responses import StreamingResponse
from pydantic import BaseModel, Field

from detcore.records import CheckpointRecord
from detcore_determined.routes import enums
from detcore_determined.routes.record_documents import (
    CHECKPOINT_STATES,
    checkpoint_documents,
)
from detcore_determined.routes.response_models import (
    Document,
    ListPart,
    Nested,
    Text,
    answer,
    answer_page,
    as_float,
    new_router,
    refuse,
)
from detcore_server import Requester
from detcore_server.routes import Id, ServerState, State, open_archive

_GZIP = "application/gzip"
_ARCHIVE: dict[int | str, dict[str, Any]] = {
    200: {
        "content": {_GZIP: {"schema": {"type": "string", "format": "binary"}}},
        "description": "A tar archive, compressed by gzip.",
    }
}
_Uuids = Annotated[list[Text], Field(min_length=1, max_length=1000)]


class Listed(ListPart):
    """Filter, order and page of a list of checkpoints."""

    states: list[enums.CheckpointState] = Field([], max_length=100)
    sort_by: enums.CheckpointSort = Field(enums.CheckpointSort.UNSPECIFIED, alias="sortByAttr")
    sort_by_metric: Text = Field("", alias="sortByMetric")
    order_by: enums.Order = Field(enums.Order.UNSPECIFIED, alias="orderBy")

    @property
    def by_metric(self) -> bool:
        """Whether the list is sorted by a metric."""
        is_searcher = self.sort_by is enums.CheckpointSort.SEARCHER_METRIC
        return is_searcher or bool(self.sort_by_metric)


class Metadata(BaseModel):
    """The metadata of a checkpoint."""

    metadata: Nested = {}


class PostMetadata(BaseModel):
    """A checkpoint. Only its metadata is used, and replaces the current metadata."""

    checkpoint: Metadata


class DeleteCheckpoints(BaseModel):
    """The checkpoints to delete."""

    checkpointUuids: _Uuids


class RemoveFiles(DeleteCheckpoints):
    """The checkpoints and patterns of the files to delete."""

    checkpointGlobs: Annotated[list[Text], Field(max_length=1000)] = []


router = new_router()


@router.get("/api/v1/experiments/{experiment_id}/checkpoints")
def list_of_experiment(
    state: State, _: Requester, experiment_id: Id, listed: Annotated[Listed, Query()]
) -> Response:
    """List the checkpoints of an experiment."""
    state.database.get_experiment(experiment_id)
    state.ingest_reports(experiment_id)
    records = state.database.list_checkpoints(experiment_id=experiment_id)
    return _list_checkpoints(state, experiment_id, records, listed)


@router.get("/api/v1/trials/{trial_id}/checkpoints")
def list_of_trial(
    state: State, _: Requester, trial_id: Id, listed: Annotated[Listed, Query()]
) -> Response:
    """List the checkpoints of a trial."""
    owner = state.database.get_trial(trial_id).experiment_id
    state.ingest_reports(owner, trial_id)
    records = state.database.list_checkpoints(trial_id=trial_id)
    return _list_checkpoints(state, owner, records, listed)


@router.get("/api/v1/checkpoints/{uuid}")
def get_checkpoint(state: State, _: Requester, uuid: Text) -> Response:
    """Return a checkpoint."""
    return answer({"checkpoint": _one(state, uuid)})


@router.post("/api/v1/checkpoints/{uuid}/metadata")
def post_metadata(state: State, _: Requester, uuid: Text, body: PostMetadata) -> Response:
    """Replace the metadata of a checkpoint; its files stay as they are."""
    record = state.database.get_checkpoint(uuid)
    metadata = body.checkpoint.metadata
    removed_keys = [key for key in record.metadata if key not in metadata]
    if removed_keys:
        state.database.remove_checkpoint_metadata(record.uuid, removed_keys)
    if metadata:
        state.database.add_checkpoint_metadata(record.uuid, metadata)
    return answer({"checkpoint": _one(state, record.uuid)})


@router.delete("/api/v1/checkpoints")
def delete_checkpoints(state: State, requester: Requester, body: DeleteCheckpoints) -> Response:
    """Delete checkpoints; those in the model registry are refused."""
    _delete_checkpoints(state, requester, body.checkpointUuids, None)
    return answer({})


@router.post("/api/v1/checkpoints/rm")
def remove_files(state: State, requester: Requester, body: RemoveFiles) -> Response:
    """Delete the files of checkpoints that match; without patterns nothing is done."""
    _delete_checkpoints(state, requester, body.checkpointUuids, body.checkpointGlobs)
    return answer({})


@router.get("/checkpoints/{uuid}", response_class=StreamingResponse, responses=_ARCHIVE)
def download(state: State, _: Requester, uuid: Text) -> Response:
    """Stream the files of a checkpoint as a compressed tar archive."""
    record = state.database.get_checkpoint(uuid)
    name = f"{record.uuid}.tar.gz"
    return StreamingResponse(
        open_archive(state, record.uuid),
        media_type=_GZIP,
        headers={"Content-Disposition": f'attachment; filename="{name}"'},
    )


def _one(state: ServerState, uuid: str) -> Document:
    record = state.database.get_checkpoint(uuid)
    state.ingest_reports(record.experiment_id, record.trial_id)
    (document,) = checkpoint_documents(state, [state.database.get_checkpoint(record.uuid)])
    return document


def _delete_checkpoints(
    state: ServerState, requester: Requester, uuids: Sequence[str], globs: list[str] | None
) -> None:
    # Only whole UUIDs, and only if all of them exist: deleted files cannot be restored.
    records = [state.database.get_checkpoint(uuid) for uuid in uuids]
    for uuid, record in zip(uuids, records, strict=True):
        if uuid != record.uuid:
            raise refuse(404, f"no checkpoint {uuid!r}; nothing was deleted")
        state.jobs.require_owner(requester, record.experiment_id)
    for record in records:
        if globs is None or globs:
            state.transport.delete_checkpoint(record.uuid, globs)


def _list_checkpoints(
    state: ServerState, experiment_id: int, records: list[CheckpointRecord], listed: Listed
) -> Response:
    names = {
        state_filter.value
        for state_filter in listed.states
        if state_filter.value != "STATE_UNSPECIFIED"
    }
    if not names and listed.by_metric:
        names = {"STATE_COMPLETED"}  # only these have files to use
    if names:
        records = [record for record in records if CHECKPOINT_STATES[record.state] in names]
    if listed.by_metric:
        records = _sort_by_metric(state, experiment_id, records, listed)
    else:
        records = _by_attribute(records, listed)
    describe = functools.partial(checkpoint_documents, state)
    return answer_page("checkpoints", records, describe, listed)


def _by_attribute(records: list[CheckpointRecord], listed: Listed) -> list[CheckpointRecord]:
    sort = enums.CheckpointSort
    keys: Mapping[enums.CheckpointSort, Callable[[CheckpointRecord], Any]] = {
        sort.UNSPECIFIED: lambda record: record.started_at,
        sort.UUID: lambda record: record.uuid,
        sort.TRIAL_ID: lambda record: (record.trial_id, record.steps_completed),
        sort.BATCH_NUMBER: lambda record: (record.steps_completed, record.started_at),
        sort.END_TIME: lambda record: record.committed_at or record.started_at,
        sort.STATE: lambda record: record.state,
    }
    key = keys.get(listed.sort_by) or keys[sort.UNSPECIFIED]
    is_descending = listed.order_by is enums.Order.DESC
    return sorted(records, key=lambda record: (key(record), record.uuid), reverse=is_descending)


def _sort_by_metric(
    state: ServerState, experiment_id: int, records: list[CheckpointRecord], listed: Listed
) -> list[CheckpointRecord]:
    """Sort checkpoints by a validation metric at their step, checkpoints without it last."""
    searcher = state.database.get_experiment(experiment_id).searcher
    metric = searcher.metric
    is_descending = listed.order_by is enums.Order.DESC
    if listed.sort_by_metric:
        metric = listed.sort_by_metric
    elif listed.order_by is enums.Order.UNSPECIFIED:
        is_descending = searcher.smaller_is_better is False
    validations = state.database.checkpoint_validations([record.uuid for record in records])
    values: dict[str, float] = {}
    for uuid, validation in validations.items():
        value = as_float(validation.metrics.get(metric)) if metric is not None else None
        if value is not None and not math.isnan(value):
            values[uuid] = -value if is_descending else value
    ranked = [record for record in records if record.uuid in values]
    ranked.sort(key=lambda record: (values[record.uuid], record.trial_id, record.steps_completed))
    return ranked + [record for record in records if record.uuid not in values]
