"""The model registry."""

from __future__ import annotations

import collections
from typing import Annotated

from fastapi import APIRouter, Query, Response
from pydantic import BaseModel, Field, StrictInt

from detcore.database import ModelRecord
from detcore.errors import NotFoundError
from detcore.types import ModelOrderBy, ModelSortBy
from detcore_determined._routes import _enums
from detcore_determined._routes._answers import (
    Document,
    Limit,
    Nested,
    Numbers,
    Offset,
    Text,
    Texts,
    answer,
    moment,
    new_router,
    page,
    part,
    refuse,
)
from detcore_determined._routes._places import PLACE_ID, PLACE_NAME
from detcore_server import Requester
from detcore_server.routes import ServerState, State

_SORTS = {
    _enums.ModelSort.NAME: ModelSortBy.NAME,
    _enums.ModelSort.DESCRIPTION: ModelSortBy.DESCRIPTION,
    _enums.ModelSort.CREATION_TIME: ModelSortBy.CREATION_TIME,
    _enums.ModelSort.LAST_UPDATED_TIME: ModelSortBy.LAST_UPDATED_TIME,
}
_Number = Annotated[int, Field(ge=-1, le=2**31 - 1)]


class Filters(BaseModel):
    """Which models are listed, in which order, and which part of the list."""

    archived: bool | None = None
    description: Text = ""
    id: int = Field(0, ge=-1, le=2**31 - 1)
    labels: Texts = []
    name: Text = ""
    user_ids: Numbers = Field([], alias="userIds")
    users: Texts = []
    workspace_ids: Numbers = Field([], alias="workspaceIds")
    workspace_names: Texts = Field([], alias="workspaceNames")
    sort_by: _enums.ModelSort = Field(_enums.ModelSort.UNSPECIFIED, alias="sortBy")
    order_by: _enums.Order = Field(_enums.Order.UNSPECIFIED, alias="orderBy")
    limit: Limit = 0
    offset: Offset = 0


class Said(BaseModel):
    """Fields of a model; one that is missing or null stays as it is."""

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


def make_router() -> APIRouter:
    """Return the routes of this part."""
    router = new_router()

    @router.get("/api/v1/models")
    def list_models(
        state: State, requester: Requester, filters: Annotated[Filters, Query()]
    ) -> Response:
        """List models."""
        return answer(_list(state, requester, filters))

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
        made = state.database.create_model(
            body.name,
            description=body.description or "",
            metadata=body.metadata or {},
            labels=body.labels or [],
        )
        return answer({"model": model_document(made, requester)})

    @router.get("/api/v1/model/labels")
    def list_labels(state: State, _: Requester) -> Response:
        """List the labels of models, the most used first."""
        counted = collections.Counter(
            label for model in state.database.list_models() for label in model.labels
        )
        ordered = sorted(counted, key=lambda label: (-counted[label], label))
        return answer({"labels": ordered})

    @router.get("/api/v1/models/{model}")
    def get_model(state: State, requester: Requester, model: Text) -> Response:
        """Return a model by name or id."""
        return answer({"model": model_document(find_model(state, model), requester)})

    @router.patch("/api/v1/models/{model}")
    def patch_model(state: State, requester: Requester, model: Text, body: PatchModel) -> Response:
        """Change the fields of a model; metadata and labels replace the current ones."""
        _check(body)
        changed = state.database.update_model(
            find_model(state, model).id,
            name=body.name,
            description=body.description,
            labels=body.labels,
            metadata=body.metadata,
        )
        return answer({"model": model_document(changed, requester)})

    @router.post("/api/v1/models/{model}/archive")
    def archive_model(state: State, _: Requester, model: Text) -> Response:
        """Archive a model."""
        state.database.set_model_archived(find_model(state, model).id, True)
        return answer({})

    @router.post("/api/v1/models/{model}/unarchive")
    def unarchive_model(state: State, _: Requester, model: Text) -> Response:
        """Unarchive a model."""
        state.database.set_model_archived(find_model(state, model).id, False)
        return answer({})

    @router.delete("/api/v1/models/{model}")
    def delete_model(state: State, _: Requester, model: Text) -> Response:
        """Delete a model and its versions; checkpoints stay."""
        state.database.delete_model(find_model(state, model).id)
        return answer({})

    return router


def find_model(state: ServerState, model: str) -> ModelRecord:
    """Return a model by id, where it is a number, or by name."""
    if model.isascii() and model.isdigit() and len(model) < 10:
        try:
            return state.database.get_model(int(model))
        except NotFoundError:
            pass  # a model of detcore's own may be called "7"
    return state.database.get_model(model)


def _check(said: Said) -> None:
    if said.notes:
        raise refuse(400, "detcore keeps no notes of models; put them into the description")
    if said.workspaceName not in (None, "", PLACE_NAME) or said.workspaceId not in (
        None, 0, PLACE_ID,
    ):  # fmt: skip
        raise refuse(404, f"there is one workspace, {PLACE_ID} ({PLACE_NAME})")


def _list(state: ServerState, requester: Requester, filters: Filters) -> Document:
    sort = _enums.ModelSort
    is_descending = filters.order_by is _enums.Order.DESC
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
    is_elsewhere = (
        (filters.users and requester.user_name not in filters.users)
        or (filters.user_ids and requester.user_id not in filters.user_ids)
        or (filters.workspace_ids and PLACE_ID not in filters.workspace_ids)
        or (filters.workspace_names and PLACE_NAME not in filters.workspace_names)
    )
    if is_elsewhere:
        records = []
    if filters.sort_by is sort.NUM_VERSIONS:
        records.sort(key=lambda record: record.num_versions, reverse=is_descending)
    start, end = part(len(records), filters.limit, filters.offset)
    where = page(len(records), start, end, limit=filters.limit, offset=filters.offset)
    return {
        "models": [model_document(record, requester) for record in records[start:end]],
        "pagination": where,
    }


def model_document(record: ModelRecord, requester: Requester) -> Document:
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
