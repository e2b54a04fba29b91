"""A checkpoint: its files, and whether they are as they were saved."""

from __future__ import annotations

import tarfile
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated
from urllib.parse import quote

from fastapi import APIRouter, Form, Request, Response
from fastapi.responses import RedirectResponse, StreamingResponse

from detcore.errors import RunError
from detcore_server.http.answers import answer_file
from detcore_server.pages.lineage import ancestors, descendants
from detcore_server.pages.render import render
from detcore_server.pages.verification import READABLE
from detcore_server.users.authentication import PageUser, State

if TYPE_CHECKING:
    from detcore_server.state import ServerState


_FILES_SHOWN = 500
_BLOCK_BYTES = 512
_CHUNK_BYTES = 1 << 20
_Text = Annotated[str, Form()]

router = APIRouter()


# Before the page, whose path takes everything.
@router.get("/ui/checkpoints/{uuid:path}/file")
def get_file(state: State, uuid: str, name: str) -> Response:
    return _download_file(state, uuid, name)


@router.get("/ui/checkpoints/{uuid:path}/files.tar")
def get_files(state: State, uuid: str) -> Response:
    return _download_all(state, uuid)


@router.get("/ui/checkpoints/{uuid:path}")
def show_checkpoint(request: Request, state: State, uuid: str) -> Response:
    database = state.database
    record = database.get_checkpoint(uuid)
    state.ingest_reports(record.experiment_id, record.trial_id)
    verification = state.verifier.get(record.uuid)
    files = sorted(record.resources.items())
    experiment = database.get_experiment(record.experiment_id)
    return render(
        request, "checkpoint.html",
        record=record,
        experiment=experiment,
        ancestors=ancestors(database, experiment),
        descendants=descendants(database, record.uuid),
        server_url=state.settings.url,
        models=[model.name for model in database.list_models(archived=False)],
        files=files[:_FILES_SHOWN],
        num_files=len(files),
        validation=database.checkpoint_validations([record.uuid]).get(record.uuid),
        versions=database.registered_checkpoints().get(record.uuid, []),
        verification=verification,
        can_verify=record.state in READABLE,
        is_live=verification is not None and not verification.is_over,
    )  # fmt: skip


@router.post("/ui/checkpoints/{uuid:path}/verify")
def verify(state: State, user: PageUser, uuid: str) -> Response:
    record = state.database.get_checkpoint(uuid)
    state.verifier.start(record, user.user_name)
    return RedirectResponse(f"/ui/checkpoints/{quote(record.uuid, safe='')}#files", 303)


@router.post("/ui/checkpoints/{uuid:path}/register")
def register(
    state: State,
    uuid: str,
    model: _Text,
    name: _Text = "",
    comment: _Text = "",
) -> Response:
    database = state.database
    record = database.get_checkpoint(uuid)
    if model not in {known.name for known in database.list_models()}:
        database.create_model(model)
    version = database.register_version(model, record.uuid, name=name, comment=comment)
    return RedirectResponse(f"/ui/models/{version.model_id}", 303)


def _download_file(state: ServerState, uuid: str, name: str) -> Response:
    """Return a file of a checkpoint, to be saved by a browser and never shown by it.

    Raises:
        CheckpointStateError: If the checkpoint is not complete, or was deleted.
        NotFoundError: If it has no such file.
    """
    file, size = state.transport.open_file(uuid, name)
    response = answer_file(file, size, 0)
    response.headers["Content-Disposition"] = _disposition(name.rpartition("/")[2])
    return response


def _download_all(state: ServerState, uuid: str) -> Response:
    """Return all files of a checkpoint, its manifest included, as a tar archive.

    The archive is made while it is sent; its length is known before, so that a browser notices if
    the rest does not come.

    Raises:
        CheckpointStateError: If the checkpoint is not complete, or was deleted.
    """
    listed = state.transport.list_files(uuid)
    parts = [
        (str(each["name"]), int(each["size"]), _head(uuid, str(each["name"]), int(each["size"])))
        for each in listed["files"]
    ]
    length = sum(len(head) + size + _padding(size) for _, size, head in parts) + 2 * _BLOCK_BYTES
    return StreamingResponse(
        _archive(state, uuid, parts),
        media_type="application/x-tar",
        headers={
            "Content-Length": str(length),
            "Content-Disposition": _disposition(f"{uuid}.tar"),
        },
    )


def _head(uuid: str, name: str, size: int) -> bytes:
    info = tarfile.TarInfo(f"{uuid}/{name}")
    info.size = size
    return info.tobuf(tarfile.PAX_FORMAT)


def _padding(size: int) -> int:
    return -size % _BLOCK_BYTES


def _archive(state: ServerState, uuid: str, parts: list[tuple[str, int, bytes]]) -> Iterator[bytes]:
    for name, size, head in parts:
        yield head
        file, _ = state.transport.open_file(uuid, name)
        left = size
        with file:
            while left and (piece := file.read(min(left, _CHUNK_BYTES))):
                left -= len(piece)
                yield piece
        if left:
            raise RunError(f"{name} of checkpoint {uuid} lost its last {left} bytes")
        yield bytes(_padding(size))
    yield bytes(2 * _BLOCK_BYTES)


def _disposition(name: str) -> str:
    """Return the header that has a browser save a file; names may hold anything."""
    return f"attachment; filename*=UTF-8''{quote(name, safe='', errors='replace')}"
