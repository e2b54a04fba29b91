"""Checkpoint page with files and their verification."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import quote

from fastapi import APIRouter, Form, Request, Response
from fastapi.responses import RedirectResponse, StreamingResponse

from detcore_server.http.checkpoint_archive import open_archive
from detcore_server.http.responses import answer_file
from detcore_server.pages.lineage import find_ancestors, find_descendants
from detcore_server.pages.render import render
from detcore_server.pages.verification import READABLE
from detcore_server.users.authentication import PageUser, State

_FILES_SHOWN = 500
_Text = Annotated[str, Form()]

router = APIRouter()


# Registered before the page, whose path matches everything.
@router.get("/ui/checkpoints/{uuid:path}/file")
def get_file(state: State, uuid: str, name: str) -> Response:
    """Return a file of a checkpoint as a download, which browsers do not display."""
    file, size = state.transport.open_file(uuid, name)
    response = answer_file(file, size, 0)
    response.headers["Content-Disposition"] = _download_header(name.rpartition("/")[2])
    return response


@router.get("/ui/checkpoints/{uuid:path}/files.tar.gz")
def get_files(state: State, uuid: str) -> Response:
    uuid = state.database.get_checkpoint(uuid).uuid
    return StreamingResponse(
        open_archive(state, uuid, prefix=f"{uuid}/"),
        media_type="application/gzip",
        headers={"Content-Disposition": _download_header(f"{uuid}.tar.gz")},
    )


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
        ancestors=find_ancestors(database, experiment),
        descendants=find_descendants(database, record.uuid),
        server_url=state.settings.url,
        models=[model.name for model in database.list_models(archived=False)],
        files=files[:_FILES_SHOWN],
        num_files=len(files),
        validation=database.checkpoint_validations([record.uuid]).get(record.uuid),
        versions=database.list_registered_checkpoints().get(record.uuid, []),
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
    if model not in {model_record.name for model_record in database.list_models()}:
        database.create_model(model)
    version = database.register_version(model, record.uuid, name=name, comment=comment)
    return RedirectResponse(f"/ui/models/{version.model_id}", 303)


def _download_header(name: str) -> str:
    """Return the download header. File names may contain any character."""
    return f"attachment; filename*=UTF-8''{quote(name, safe='', errors='replace')}"
