"""The model registry: models and their versions."""

from __future__ import annotations

import collections
import functools
from collections.abc import Sequence
from typing import Annotated

from fastapi import Depends, Query, Response
from pydantic import BaseModel, Field, StrictInt

from detcore.errors import NotFoundError
from detcore.records import ModelRecord, ModelVersionRecord
from detcore.types import ModelOrderBy, ModelSortBy
from detcore_determined.routes import enums
from detcore_determined.routes.cluster_routes import PLACE_ID, PLACE_NAME
from detcore_determined.routes.record_documents import checkpoint_documents
from detcore_determined.routes.response_models import (
    Document,
    ListPart,
    Nested,
    Numbers,
    Part,
    Text,
    Texts,
    answer,
    answer_page,
    moment,
    new_router,
    refuse,
)
from detcore_server import Requester
from detcore_server.routes import ServerState, State

_SORTS = {
    enums.ModelSort.NAME: ModelSortBy.NAME,
    enums.ModelSort.DESCRIPTION: ModelSortBy.DESCRIPTION,
    enums.ModelSort.CREATION_TIME: ModelSortBy.CREATION_TIME,
    enums.ModelSort.LAST_UPDATED_TIME: ModelSortBy.LAST_UPDATED_TIME,
}
_Number = Annotated[int, Field(ge=-1, le=2**31 - 1)]


class Filters(ListPart, extra="forbid"):
    """Filter, order and page of a list of models."""

    archived: bool | None = None
    description: Text = ""
    id: int = Field(0, ge=-1, le=2**31 - 1)
    labels: Texts = []
    name: Text = ""
    workspace_ids: Numbers = Field([], alias="workspaceIds")
    workspace_names: Texts = Field([], alias="workspaceNames")
    sort_by: enums.ModelSort = Field(enums.ModelSort.UNSPECIFIED, alias="sortBy")
    order_by: enums.Order = Field(enums.Order.UNSPECIFIED, alias="orderBy")


class Said(BaseModel):
    """Fields of a model. Missing or null fields do not change."""

    description: Text | None = None
    labels: list[Text] | None = None
    metadata: Nested | None = None
    notes: Text | None = None
    workspaceId: StrictInt | None = None
    workspaceName: Text | None = None


class PostModel(Said):
    """A new model."""

    name: Text = Field(min_length=1)


class PatchModel(Said):
    """Changes to a model."""

    name: Text | None = None


class VersionSaid(BaseModel):
    """Fields of a version. Missing or null fields do not change."""

    comment: Text | None = None
    labels: list[Text] | None = None
    metadata: Nested | None = None
    name: Text | None = None
    notes: Text | None = None


class PostVersion(VersionSaid):
    """A new version."""

    checkpointUuid: Text


router = new_router()


def _find_model(state: State, model: Text) -> ModelRecord:
    """Return a model by id, if `name` is a number, or by name."""
    if model.isascii() and model.isdigit() and len(model) < 10:
        try:
            return state.database.get_model(int(model))
        except NotFoundError:
            pass  # a model of detcore's own may be called "7"
    return state.database.get_model(model)


_Model = Annotated[ModelRecord, Depends(_find_model)]


@router.get("/api/v1/models")
def list_models(
    state: State, requester: Requester, filters: Annotated[Filters, Query()]
) -> Response:
    """List models."""
    is_descending = filters.order_by is enums.Order.DESC
    records = [
        record
        for record in state.database.list_models(
            sort_by=_SORTS.get(filters.sort_by, ModelSortBy.UNSPECIFIED),
            order_by=ModelOrderBy.DESC if is_descending else ModelOrderBy.ASC,
            name=filters.name,
            description=filters.description,
            labels=filters.labels,
            archived=filters.archived,
        )
        if not filters.id or record.id == filters.id
    ]
    if (filters.workspace_ids and PLACE_ID not in filters.workspace_ids) or (
        filters.workspace_names and PLACE_NAME not in filters.workspace_names
    ):
        records = []
    if filters.sort_by is enums.ModelSort.NUM_VERSIONS:
        records.sort(key=lambda record: record.num_versions, reverse=is_descending)

    def describe(records: Sequence[ModelRecord]) -> list[Document]:
        return [_model_document(record, requester) for record in records]

    return answer_page("models", records, describe, filters)


@router.post("/api/v1/models")
def post_model(state: State, requester: Requester, body: PostModel) -> Response:
    """Add a model."""
    _check(body)
    if "/" in body.name or body.name.strip().isdigit():
        raise refuse(
            400,
            f"the name {body.name!r} would not be found again: digits alone are taken for an "
            "id, and a slash for a part of the address. Choose another name.",
        )
    model = state.database.create_model(
        body.name,
        description=body.description or "",
        metadata=body.metadata or {},
        labels=body.labels or [],
    )
    return answer({"model": _model_document(model, requester)})


@router.get("/api/v1/model/labels")
def list_labels(state: State, _: Requester) -> Response:
    """List the labels of models, the most used first."""
    counted = collections.Counter(
        label for model in state.database.list_models() for label in model.labels
    )
    ordered = sorted(counted, key=lambda label: (-counted[label], label))
    return answer({"labels": ordered})


@router.get("/api/v1/models/{model}")
def get_model(state: State, requester: Requester, model: _Model) -> Response:
    """Return a model by name or id."""
    return answer({"model": _model_document(model, requester)})


@router.patch("/api/v1/models/{model}")
def patch_model(state: State, requester: Requester, model: _Model, body: PatchModel) -> Response:
    """Change the fields of a model; metadata and labels replace the current ones."""
    _check(body)
    updated_model = state.database.update_model(
        model.id,
        name=body.name,
        description=body.description,
        labels=body.labels,
        metadata=body.metadata,
    )
    return answer({"model": _model_document(updated_model, requester)})


@router.post("/api/v1/models/{model}/archive")
def archive_model(state: State, _: Requester, model: _Model) -> Response:
    """Archive a model."""
    state.database.set_model_archived(model.id, True)
    return answer({})


@router.post("/api/v1/models/{model}/unarchive")
def unarchive_model(state: State, _: Requester, model: _Model) -> Response:
    """Unarchive a model."""
    state.database.set_model_archived(model.id, False)
    return answer({})


@router.delete("/api/v1/models/{model}")
def delete_model(state: State, _: Requester, model: _Model) -> Response:
    """Delete a model and its versions; checkpoints stay."""
    state.database.delete_model(model.id)
    return answer({})


@router.get("/api/v1/models/{model}/versions")
def list_versions(
    state: State,
    requester: Requester,
    model: _Model,
    part: Part,
    sort_by: Annotated[enums.VersionSort, Query(alias="sortBy")] = (enums.VersionSort.UNSPECIFIED),
    order_by: Annotated[enums.Order, Query(alias="orderBy")] = enums.Order.UNSPECIFIED,
) -> Response:
    """List the versions of a model by number, which is also the order of creation."""
    is_descending = order_by is enums.Order.DESC
    records = state.database.list_versions(
        model.id, order_by=ModelOrderBy.DESC if is_descending else ModelOrderBy.ASC
    )
    describe = functools.partial(_describe_versions, state, requester, model)
    document = _model_document(model, requester)
    return answer_page("modelVersions", records, describe, part, model=document)


@router.post("/api/v1/models/{model}/versions")
def post_version(state: State, requester: Requester, model: _Model, body: PostVersion) -> Response:
    """Make a checkpoint the next version of a model."""
    _check_version(body)
    record = state.database.register_version(
        model.id,
        state.database.get_checkpoint(body.checkpointUuid).uuid,
        name=body.name or "",
        comment=body.comment or "",
        notes=body.notes or "",
        metadata=body.metadata or {},
    )
    return _answer_version(state, requester, model.id, record)


@router.get("/api/v1/models/{model}/versions/{number}")
def get_version(state: State, requester: Requester, model: _Model, number: _Number) -> Response:
    """Return a version of a model."""
    record = state.database.get_version(model.id, number)
    if record is None:
        raise NotFoundError(f"the model {model.name!r} has no version {number}")
    return _answer_version(state, requester, model.id, record)


@router.patch("/api/v1/models/{model}/versions/{number}")
def patch_version(
    state: State, requester: Requester, model: _Model, number: _Number, body: VersionSaid
) -> Response:
    """Change the name, comment, notes or metadata of a version."""
    _check_version(body)
    record = state.database.update_version(
        model.id,
        number,
        name=body.name,
        comment=body.comment,
        notes=body.notes,
        metadata=body.metadata,
    )
    return _answer_version(state, requester, model.id, record)


@router.delete("/api/v1/models/{model}/versions/{number}")
def delete_version(state: State, _: Requester, model: _Model, number: _Number) -> Response:
    """Delete a version of a model; its checkpoint stays."""
    state.database.delete_version(model.id, number)
    return answer({})


@router.get("/api/v1/models/{model}/versions/{number}/metrics")
def list_version_metrics(state: State, _: Requester, model: _Model, number: _Number) -> Response:
    """List reports of other trials on a version: detcore records none."""
    return answer({"metrics": []})


def _check(said: Said) -> None:
    if said.notes:
        raise refuse(400, "detcore has no notes of models; use the description")
    if said.workspaceName not in (None, "", PLACE_NAME) or said.workspaceId not in (
        None, 0, PLACE_ID,
    ):  # fmt: skip
        raise refuse(404, f"there is one workspace, {PLACE_ID} ({PLACE_NAME})")


def _model_document(record: ModelRecord, requester: Requester) -> Document:
    return {
        "id": record.id,
        "name": record.name,
        "description": record.description,
        "metadata": dict(record.metadata),
        "labels": list(record.labels),
        "archived": record.archived,
        "numVersions": record.num_versions,
        "creationTime": moment(record.created_at),
        "lastUpdatedTime": moment(record.updated_at),
        "notes": "",
        "userId": requester.user_id,
        "username": requester.user_name,
        "workspaceId": PLACE_ID,
    }


def _check_version(said: VersionSaid) -> None:
    if said.labels:
        raise refuse(400, "detcore has no labels of versions; label the model")


def _answer_version(
    state: ServerState, requester: Requester, model_id: int, record: ModelVersionRecord
) -> Response:
    # Read again: the number of versions has changed.
    model = state.database.get_model(model_id)
    (document,) = _describe_versions(state, requester, model, [record])
    return answer({"modelVersion": document})


def _describe_versions(
    state: ServerState,
    requester: Requester,
    model: ModelRecord,
    records: Sequence[ModelVersionRecord],
) -> list[Document]:
    checkpoints = checkpoint_documents(
        state, [state.database.get_checkpoint(record.checkpoint_uuid) for record in records]
    )
    document = _model_document(model, requester)
    return [
        {
            "id": record.number,
            "version": record.number,
            "model": document,
            "checkpoint": checkpoint,
            "name": record.name,
            "comment": record.comment,
            "notes": record.notes,
            "labels": [],
            "metadata": dict(record.metadata),
            "creationTime": moment(record.created_at),
            "lastUpdatedTime": moment(record.updated_at),
            "userId": requester.user_id,
            "username": requester.user_name,
        }
        for record, checkpoint in zip(records, checkpoints, strict=True)
    ]
