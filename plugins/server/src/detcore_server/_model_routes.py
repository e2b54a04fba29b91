"""The model registry over HTTP. In paths models have their numbers: a name may hold anything."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Query

from detcore.types import ModelOrderBy, ModelSortBy
from detcore_server._answers import AsciiJson
from detcore_server._auth import Requester, State
from detcore_server._client_models import (
    MOST_ENTRIES,
    KeysRequest,
    Metadata,
    ModelChange,
    ModelRequest,
    OrderBy,
    SortBy,
    VersionRequest,
    answer_to,
    list_of,
)

ModelId = Annotated[int, Path(description="Number of the model.")]
Number = Annotated[int, Path(description="Number of the version; 0: the latest.")]
Limit = Annotated[int, Query(ge=1, le=MOST_ENTRIES, description="Entries at most.")]
Offset = Annotated[int, Query(ge=0, le=2**31 - 1, description="Entries to leave out.")]


def add_routes(router: APIRouter) -> None:
    """Add the routes of this part."""
    _add_finding(router)
    _add_changing(router)
    _add_versions(router)


def _add_finding(router: APIRouter) -> None:
    @router.get("/models", response_model=list_of("model"), tags=["models"])
    def list_models(
        state: State,
        _: Requester,
        sort_by: SortBy = ModelSortBy.NAME,
        order_by: OrderBy = ModelOrderBy.ASCENDING,
        name: Annotated[str, Query(description="What their names hold.")] = "",
        description: Annotated[str, Query(description="What their descriptions hold.")] = "",
        label: Annotated[list[str], Query(description="Labels that all of them have.")] = [],  # noqa: B006  (FastAPI copies it)
        archived: Annotated[bool | None, Query(description="Default: both.")] = None,
        limit: Limit = MOST_ENTRIES,
        offset: Offset = 0,
    ) -> AsciiJson:
        """Return models."""
        return AsciiJson(
            state.transport.list_models(
                sort_by=sort_by,
                order_by=order_by,
                name=name,
                description=description,
                labels=label,
                archived=archived,
                limit=limit,
                offset=offset,
            )
        )

    @router.get("/model", response_model=answer_to("model"), tags=["models"])
    def find_model(
        state: State, _: Requester, name: Annotated[str, Query(description="The whole name.")]
    ) -> AsciiJson:
        """Return the model of a name."""
        return AsciiJson(state.transport.get_model(name))

    @router.get("/models/{model_id}", response_model=answer_to("model"), tags=["models"])
    def get_model(state: State, _: Requester, model_id: ModelId) -> AsciiJson:
        """Return a model."""
        return AsciiJson(state.transport.get_model(model_id))


def _add_changing(router: APIRouter) -> None:
    path = "/models/{model_id}"

    @router.post("/models", response_model=answer_to("model"), tags=["models"])
    def create_model(state: State, _: Requester, request: ModelRequest) -> AsciiJson:
        """Add a model."""
        return AsciiJson(
            state.transport.create_model(
                request.name, request.description, request.metadata, request.labels
            )
        )

    @router.patch(path, response_model=answer_to("model"), tags=["models"])
    def update_model(
        state: State, _: Requester, model_id: ModelId, request: ModelChange
    ) -> AsciiJson:
        """Change the description or labels of a model."""
        return AsciiJson(
            state.transport.update_model(
                model_id, description=request.description, labels=request.labels
            )
        )

    @router.post(f"{path}/archive", response_model=answer_to("model"), tags=["models"])
    def archive_model(state: State, _: Requester, model_id: ModelId) -> AsciiJson:
        """Archive a model: it is shown, but cannot be changed."""
        return AsciiJson(state.transport.set_model_archived(model_id, True))

    @router.post(f"{path}/unarchive", response_model=answer_to("model"), tags=["models"])
    def unarchive_model(state: State, _: Requester, model_id: ModelId) -> AsciiJson:
        """Unarchive a model."""
        return AsciiJson(state.transport.set_model_archived(model_id, False))

    @router.patch(f"{path}/metadata", response_model=answer_to("model"), tags=["models"])
    def add_metadata(state: State, _: Requester, model_id: ModelId, request: Metadata) -> AsciiJson:
        """Add to a model's metadata; values of existing keys are replaced."""
        return AsciiJson(state.transport.add_model_metadata(model_id, request))

    @router.post(f"{path}/metadata/remove", response_model=answer_to("model"), tags=["models"])
    def remove_metadata(
        state: State, _: Requester, model_id: ModelId, request: KeysRequest
    ) -> AsciiJson:
        """Remove keys from a model's metadata."""
        return AsciiJson(state.transport.remove_model_metadata(model_id, request.keys))

    @router.delete(path, status_code=204, tags=["models"])
    def delete_model(state: State, _: Requester, model_id: ModelId) -> None:
        """Delete a model and its versions; checkpoints stay."""
        state.transport.delete_model(model_id)


def _add_versions(router: APIRouter) -> None:
    path = "/models/{model_id}/versions"

    @router.get(path, response_model=list_of("version"), tags=["models"])
    def list_versions(
        state: State,
        _: Requester,
        model_id: ModelId,
        order_by: OrderBy = ModelOrderBy.DESCENDING,
        limit: Limit = MOST_ENTRIES,
        offset: Offset = 0,
    ) -> AsciiJson:
        """Return the versions of a model, by number."""
        return AsciiJson(
            state.transport.list_versions(model_id, order_by=order_by, limit=limit, offset=offset)
        )

    @router.post(path, response_model=answer_to("version"), tags=["models"])
    def register_version(
        state: State, _: Requester, model_id: ModelId, request: VersionRequest
    ) -> AsciiJson:
        """Make a checkpoint the next version of a model."""
        return AsciiJson(
            state.transport.register_version(
                model_id,
                request.checkpoint_uuid,
                name=request.name,
                comment=request.comment,
                notes=request.notes,
                metadata=request.metadata,
            )
        )

    @router.get(f"{path}/{{number}}", response_model=answer_to("version") | None, tags=["models"])
    def get_version(state: State, _: Requester, model_id: ModelId, number: Number) -> AsciiJson:
        """Return a version of a model; null if it does not exist."""
        return AsciiJson(state.transport.get_version(model_id, number))

    @router.delete(f"{path}/{{number}}", status_code=204, tags=["models"])
    def delete_version(state: State, _: Requester, model_id: ModelId, number: Number) -> None:
        """Delete a version of a model; its checkpoint stays."""
        state.transport.delete_version(model_id, number)
