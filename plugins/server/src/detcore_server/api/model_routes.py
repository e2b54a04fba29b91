"""Model registry over HTTP. Paths contain model ids, because names may contain any character."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Query

from detcore.client import DOCUMENTS
from detcore.types import ModelOrderBy, ModelSortBy
from detcore_server.api.client_models import (
    KeysRequest,
    Metadata,
    ModelChange,
    ModelRequest,
    OrderBy,
    Page,
    SortBy,
    VersionRequest,
    list_of,
)
from detcore_server.http.responses import AsciiJson
from detcore_server.users.authentication import State

ModelId = Annotated[int, Path(description="Id of the model.")]
Number = Annotated[int, Path(description="Version number. 0 = latest.")]

router = APIRouter(tags=["models"])


@router.get("/models", response_model=list_of("model"))
def list_models(
    state: State,
    page: Page,
    sort_by: SortBy = ModelSortBy.NAME,
    order_by: OrderBy = ModelOrderBy.ASCENDING,
    name: Annotated[str, Query(description="Text that a name must contain.")] = "",
    description: Annotated[str, Query(description="Text that a description must contain.")] = "",
    label: Annotated[list[str], Query(description="Labels that a model must have.")] = [],  # noqa: B006  (FastAPI copies it)
    archived: Annotated[bool | None, Query(description="Default: both.")] = None,
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
            **page,
        )
    )


@router.get("/model", response_model=DOCUMENTS["model"])
def find_model(
    state: State, name: Annotated[str, Query(description="Complete name.")]
) -> AsciiJson:
    """Return the model with a name."""
    return AsciiJson(state.transport.get_model(name))


@router.get("/models/{model_id}", response_model=DOCUMENTS["model"])
def get_model(state: State, model_id: ModelId) -> AsciiJson:
    """Return a model."""
    return AsciiJson(state.transport.get_model(model_id))


@router.post("/models", response_model=DOCUMENTS["model"])
def create_model(state: State, request: ModelRequest) -> AsciiJson:
    """Add a model."""
    return AsciiJson(state.transport.create_model(**request.model_dump()))


@router.patch("/models/{model_id}", response_model=DOCUMENTS["model"])
def update_model(state: State, model_id: ModelId, request: ModelChange) -> AsciiJson:
    """Change the description or labels of a model."""
    return AsciiJson(state.transport.update_model(model_id, **request.model_dump()))


@router.post("/models/{model_id}/archive", response_model=DOCUMENTS["model"])
def archive_model(state: State, model_id: ModelId) -> AsciiJson:
    """Archive a model, which prevents changes."""
    return AsciiJson(state.transport.set_model_archived(model_id, True))


@router.post("/models/{model_id}/unarchive", response_model=DOCUMENTS["model"])
def unarchive_model(state: State, model_id: ModelId) -> AsciiJson:
    """Unarchive a model."""
    return AsciiJson(state.transport.set_model_archived(model_id, False))


@router.patch("/models/{model_id}/metadata", response_model=DOCUMENTS["model"])
def add_metadata(state: State, model_id: ModelId, request: Metadata) -> AsciiJson:
    """Add or replace entries in a model's metadata."""
    return AsciiJson(state.transport.add_model_metadata(model_id, request))


@router.post("/models/{model_id}/metadata/remove", response_model=DOCUMENTS["model"])
def remove_metadata(state: State, model_id: ModelId, request: KeysRequest) -> AsciiJson:
    """Remove keys from a model's metadata."""
    return AsciiJson(state.transport.remove_model_metadata(model_id, request.keys))


@router.delete("/models/{model_id}", status_code=204)
def delete_model(state: State, model_id: ModelId) -> None:
    """Delete a model and its versions, but not the checkpoints."""
    state.transport.delete_model(model_id)


@router.get("/models/{model_id}/versions", response_model=list_of("version"))
def list_versions(
    state: State,
    page: Page,
    model_id: ModelId,
    order_by: OrderBy = ModelOrderBy.DESCENDING,
) -> AsciiJson:
    """Return the versions of a model, ordered by number."""
    return AsciiJson(state.transport.list_versions(model_id, order_by=order_by, **page))


@router.post("/models/{model_id}/versions", response_model=DOCUMENTS["version"])
def register_version(state: State, model_id: ModelId, request: VersionRequest) -> AsciiJson:
    """Register a checkpoint as the next version of a model."""
    return AsciiJson(state.transport.register_version(model_id, **request.model_dump()))


@router.get("/models/{model_id}/versions/{number}", response_model=DOCUMENTS["version"] | None)
def get_version(state: State, model_id: ModelId, number: Number) -> AsciiJson:
    """Return a version of a model, or null if it does not exist."""
    return AsciiJson(state.transport.get_version(model_id, number))


@router.delete("/models/{model_id}/versions/{number}", status_code=204)
def delete_version(state: State, model_id: ModelId, number: Number) -> None:
    """Delete a version of a model, but not its checkpoint."""
    state.transport.delete_version(model_id, number)
