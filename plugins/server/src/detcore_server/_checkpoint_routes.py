"""Checkpoints over HTTP, their files included."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Query
from fastapi.responses import StreamingResponse

from detcore_server._answers import FILE_CONTENT, AsciiJson, answer_file
from detcore_server._auth import Requester, State
from detcore_server._client_models import (
    GlobsRequest,
    KeysRequest,
    Metadata,
    answer_to,
)

__all__ = ["add_routes"]

Uuid = Annotated[str, Path(description="The checkpoint's UUID, the whole of it.")]

CHECKPOINT = answer_to("checkpoint")


def add_routes(router: APIRouter) -> None:
    """Add the routes of this part."""
    _add_records(router)
    _add_files(router)


def _add_records(router: APIRouter) -> None:
    path = "/checkpoints/{uuid}"

    @router.get("/checkpoints", response_model=CHECKPOINT, tags=["checkpoints"])
    def find_checkpoint(
        state: State,
        _: Requester,
        uuid: Annotated[str, Query(description="A UUID, or a beginning that only one has.")],
    ) -> AsciiJson:
        """Return the checkpoint whose UUID is, or begins with, a text."""
        return AsciiJson(state.transport.get_checkpoint(uuid))

    @router.patch(f"{path}/metadata", response_model=CHECKPOINT, tags=["checkpoints"])
    def add_metadata(state: State, _: Requester, uuid: Uuid, request: Metadata) -> AsciiJson:
        """Add to a checkpoint's metadata; values of existing keys are replaced."""
        return AsciiJson(state.transport.add_checkpoint_metadata(uuid, request))

    @router.post(f"{path}/metadata/remove", response_model=CHECKPOINT, tags=["checkpoints"])
    def remove_metadata(state: State, _: Requester, uuid: Uuid, request: KeysRequest) -> AsciiJson:
        """Remove keys from a checkpoint's metadata."""
        return AsciiJson(state.transport.remove_checkpoint_metadata(uuid, request.keys))

    @router.delete(path, response_model=CHECKPOINT, tags=["checkpoints"])
    def delete_checkpoint(state: State, requester: Requester, uuid: Uuid) -> AsciiJson:
        """Delete a checkpoint's files, not its record: only the owner and administrators may."""
        _require_owner(state, requester, uuid)
        return AsciiJson(state.transport.delete_checkpoint(uuid, None))


def _add_files(router: APIRouter) -> None:
    path = "/checkpoints/{uuid}/files"

    @router.get(path, response_model=answer_to("files"), tags=["checkpoints"])
    def list_files(state: State, _: Requester, uuid: Uuid) -> AsciiJson:
        """Return the stored files of a checkpoint that can be read, its manifest included."""
        return AsciiJson(state.transport.list_files(uuid))

    @router.post(f"{path}/remove", response_model=CHECKPOINT, tags=["checkpoints"])
    def remove_files(
        state: State, requester: Requester, uuid: Uuid, request: GlobsRequest
    ) -> AsciiJson:
        """Delete the files of a checkpoint that match: only the owner and administrators may."""
        _require_owner(state, requester, uuid)
        return AsciiJson(state.transport.delete_checkpoint(uuid, request.globs))

    @router.get(
        f"{path}/content",
        response_class=StreamingResponse,
        responses=FILE_CONTENT,
        tags=["checkpoints"],
    )
    def get_file(
        state: State,
        _: Requester,
        uuid: Uuid,
        name: Annotated[str, Query(description="Of the file, below the checkpoint.")],
        offset: Annotated[int, Query(ge=0, le=2**62, description="Bytes to leave out.")] = 0,
    ) -> StreamingResponse:
        """Return a file of a checkpoint; the manifest says which digest it must have."""
        file, size = state.transport.open_file(uuid, name)
        return answer_file(file, size, offset)


def _require_owner(state: State, requester: Requester, uuid: str) -> None:
    state.jobs.require_owner(requester, state.database.get_checkpoint(uuid).experiment_id)
