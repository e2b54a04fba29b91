"""Versions of models."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from fastapi import APIRouter, Query, Response
from pydantic import BaseModel, Field

from detcore.database import ModelRecord, ModelVersionRecord
from detcore.errors import NotFoundError
from detcore.types import ModelOrderBy
from detcore_determined._routes import _enums
from detcore_determined._routes._answers import (
    Document,
    Limit,
    Nested,
    Offset,
    Text,
    answer,
    moment,
    new_router,
    page,
    part,
    refuse,
)
from detcore_determined._routes._documents import checkpoint_documents
from detcore_determined._routes._models import find_model, model_document
from detcore_server import Requester
from detcore_server.routes import ServerState, State

_Number = Annotated[int, Field(ge=-1, le=2**31 - 1)]


class VersionSaid(BaseModel):
    """Fields of a version; one that is missing or null stays as it is."""

    comment: Text | None = None
    labels: list[Text] | None = None
    metadata: Nested | None = None
    name: Text | None = None
    notes: Text | None = None


class PostVersion(VersionSaid):
    """A new version."""

    checkpointUuid: Text


def make_router() -> APIRouter:
    """Return the routes of this part."""
    router = new_router()

    @router.get("/api/v1/models/{model}/versions")
    def list_versions(
        state: State,
        requester: Requester,
        model: Text,
        sort_by: Annotated[_enums.VersionSort, Query(alias="sortBy")] = (
            _enums.VersionSort.UNSPECIFIED
        ),
        order_by: Annotated[_enums.Order, Query(alias="orderBy")] = _enums.Order.UNSPECIFIED,
        limit: Limit = 0,
        offset: Offset = 0,
    ) -> Response:
        """List the versions of a model by number, which is also the order of creation."""
        found = find_model(state, model)
        is_descending = order_by is _enums.Order.DESC
        records = state.database.list_versions(
            found.id, order_by=ModelOrderBy.DESC if is_descending else ModelOrderBy.ASC
        )
        start, end = part(len(records), limit, offset)
        where = page(len(records), start, end, limit=limit, offset=offset)
        return answer(
            {
                "model": model_document(found, requester),
                "modelVersions": _versions(state, requester, found, records[start:end]),
                "pagination": where,
            }
        )

    @router.post("/api/v1/models/{model}/versions")
    def post_version(
        state: State, requester: Requester, model: Text, body: PostVersion
    ) -> Response:
        """Make a checkpoint the next version of a model."""
        _check_version(body)
        found = find_model(state, model)
        record = state.database.register_version(
            found.id,
            state.database.get_checkpoint(body.checkpointUuid).uuid,
            name=body.name or "",
            comment=body.comment or "",
            notes=body.notes or "",
            metadata=body.metadata or {},
        )
        return _one(state, requester, found.id, record)

    @router.get("/api/v1/models/{model}/versions/{number}")
    def get_version(state: State, requester: Requester, model: Text, number: _Number) -> Response:
        """Return a version of a model."""
        found = find_model(state, model)
        record = state.database.get_version(found.id, number)
        if record is None:
            raise NotFoundError(f"the model {found.name!r} has no version {number}")
        return _one(state, requester, found.id, record)

    @router.patch("/api/v1/models/{model}/versions/{number}")
    def patch_version(
        state: State, requester: Requester, model: Text, number: _Number, body: VersionSaid
    ) -> Response:
        """Change the name, comment, notes or metadata of a version."""
        _check_version(body)
        found = find_model(state, model)
        record = state.database.update_version(
            found.id,
            number,
            name=body.name,
            comment=body.comment,
            notes=body.notes,
            metadata=body.metadata,
        )
        return _one(state, requester, found.id, record)

    @router.delete("/api/v1/models/{model}/versions/{number}")
    def delete_version(state: State, _: Requester, model: Text, number: _Number) -> Response:
        """Delete a version of a model; its checkpoint stays."""
        state.database.delete_version(find_model(state, model).id, number)
        return answer({})

    @router.get("/api/v1/models/{model}/versions/{number}/metrics")
    def list_version_metrics(state: State, _: Requester, model: Text, number: _Number) -> Response:
        """List reports of other trials on a version: detcore records none."""
        find_model(state, model)
        return answer({"metrics": []})

    return router


def _check_version(said: VersionSaid) -> None:
    if said.labels:
        raise refuse(400, "detcore keeps no labels of versions; label the model")


def _one(
    state: ServerState, requester: Requester, model_id: int, record: ModelVersionRecord
) -> Response:
    # Read again: the number of versions has changed.
    model = state.database.get_model(model_id)
    (document,) = _versions(state, requester, model, [record])
    return answer({"modelVersion": document})


def _versions(
    state: ServerState,
    requester: Requester,
    model: ModelRecord,
    records: Sequence[ModelVersionRecord],
) -> list[Document]:
    checkpoints = checkpoint_documents(
        state, [state.database.get_checkpoint(record.checkpoint_uuid) for record in records]
    )
    shown = model_document(model, requester)
    return [
        {
            "id": record.number,
            "version": record.number,
            "model": shown,
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
