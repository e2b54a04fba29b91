"""Submission of experiments by the earlier system's client, with the code in the request."""

from __future__ import annotations

import base64
import binascii
import fnmatch
import functools
import io
import itertools
import tarfile
import tempfile
from pathlib import Path

import anyio.to_thread
from fastapi import Request, Response
from pydantic import BaseModel, Field, ValidationError

from detcore.client.http import MAX_CONTEXT_BYTES, MAX_CONTEXT_ENTRIES, pack_directory
from detcore.errors import NotFoundError
from detcore.records import restore_secrets
from detcore.trial import copy_code
from detcore_determined.routes.cluster_routes import PLACE_ID
from detcore_determined.routes.experiment_routes import describe_experiment
from detcore_determined.routes.response_models import Document, answer, new_router, refuse
from detcore_server import Requester
from detcore_server.routes import (
    Id,
    ServerState,
    State,
    Submission,
    accept_submission,
    allow_body,
    incoming_folder,
)

# Every user who may read experiments can read the code. These files contain only secrets.
_SECRET_FILES = (".env", ".env.*", "*.env", "*.pem")
# The code in base 64, names, and the experiment file.
_MAX_BODY_BYTES = MAX_CONTEXT_BYTES * 4 // 3 + 16_000_000
_FILE, _FOLDER = ord(tarfile.REGTYPE), ord(tarfile.DIRTYPE)


class File(BaseModel):
    """A file or folder of the code."""

    path: str = Field(min_length=1, max_length=4096)
    type: int
    content: str = Field(default="", repr=False)
    mode: int = 0o644


class Create(BaseModel):
    """A submission of an experiment."""

    config: str = Field(max_length=1 << 20)
    modelDefinition: list[File] = Field(default=[], max_length=MAX_CONTEXT_ENTRIES)
    activate: bool | None = None
    validateOnly: bool | None = None
    parentId: int | None = None
    projectId: int | None = None
    template: str | None = None
    unmanaged: bool | None = None


_SCHEMA = {
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {
                "schema": {
                    "type": "object",
                    "required": ["config"],
                    "properties": {
                        "config": {"type": "string", "description": "The experiment file (YAML)."},
                        "validateOnly": {"type": "boolean"},
                    },
                }
            }
        },
    }
}

router = new_router()


@router.post("/api/v1/experiments", openapi_extra=_SCHEMA)
async def create_experiment(request: Request, state: State, requester: Requester) -> Response:
    """Validate an experiment with its code, and queue it unless only validation is requested."""
    allow_body(request, _MAX_BODY_BYTES)
    # The upload goes to disk: slow uploads must not block others, and many uploads must not fill
    # the memory.
    with incoming_folder(state.settings.environment) as folder:
        body, archive = folder / "body", folder / "code.tar.gz"
        with body.open("wb") as file:
            async for chunk in request.stream():
                file.write(chunk)
        read = functools.partial(_read_submission, body, archive)
        config, experiment_id = await accept_submission(
            state, requester, read, archive, limiter=state.reading_code
        )
    plain = config.model_dump(mode="json")
    document = functools.partial(_make_document, state, requester, plain, experiment_id)
    return answer(await anyio.to_thread.run_sync(document))


@router.get("/api/v1/experiments/{experiment_id}/model_def")
def get_code(state: State, _: Requester, experiment_id: Id) -> Response:
    """Return the code of a submitted experiment without ``.env`` and ``.pem`` files."""
    record = state.database.get_experiment(experiment_id)
    if state.database.get_submission(experiment_id) is None:
        raise NotFoundError(
            f"the code of experiment {experiment_id} is not on the server: it was started by "
            f"detcore run from {record.model_dir}."
        )
    home = state.settings.environment.home
    config = restore_secrets(home, experiment_id, record.config).config
    source = Path(record.model_dir)
    names = [name for name in _list_files(source) if not _is_secret(name)]
    with tempfile.TemporaryDirectory(dir=home) as folder:
        code = Path(folder, "code")
        copy_code(source, map(str, names), code, config=config)
        with pack_directory(code).file as file:
            file.seek(0)
            return answer({"b64Tgz": base64.b64encode(file.read()).decode("ascii")})


def _list_files(folder: Path) -> list[Path]:
    paths = [path for path in folder.rglob("*") if path.is_file() and not path.is_symlink()]
    return [path.relative_to(folder) for path in sorted(paths)]


def _is_secret(path: Path) -> bool:
    pairs = itertools.product(path.parts, _SECRET_FILES)
    return any(fnmatch.fnmatch(part, pattern) for part, pattern in pairs)


def _read_submission(body: Path, archive: Path) -> Submission:
    """Return a submission, and pack its code into an archive as other clients do."""
    try:
        submission = Create.model_validate_json(body.read_bytes())
    except ValidationError as error:
        errors = error.errors(include_input=False, include_url=False)[:5]
        where = "; ".join(f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in errors)
        raise refuse(400, f"this is not an experiment: {where}") from None
    _check_options(submission)
    if not submission.validateOnly:
        _pack_code(submission.modelDefinition, archive)
    return Submission(text=submission.config, is_only_checked=bool(submission.validateOnly))


def _make_document(
    state: ServerState, requester: Requester, plain: Document, experiment_id: int | None
) -> Document:
    if experiment_id is None:
        experiment = _only_judged(requester, plain)
        return {"experiment": experiment, "config": plain, "warnings": []}
    description = describe_experiment(state, requester, experiment_id)
    return {"experiment": description, "config": description["config"], "warnings": []}


def _check_options(wanted: Create) -> None:
    """Refuse options that detcore does not support."""
    for feature, is_asked in (
        ("templates", bool(wanted.template)),
        ("forks of other experiments", bool(wanted.parentId)),
        (f"projects but {PLACE_ID}", wanted.projectId not in (None, 0, PLACE_ID)),
        ("experiments without a runner", bool(wanted.unmanaged)),
        ("experiments that start paused", wanted.activate is False
         and not wanted.validateOnly),
    ):  # fmt: skip
        if is_asked:
            raise refuse(400, f"detcore has no {feature}. Nothing was recorded.")


def _only_judged(requester: Requester, plain: Document) -> Document:
    """Return a placeholder for an experiment that was only validated."""
    return {
        "id": 0,
        "jobId": "",
        "name": str(plain.get("name", "")),
        "archived": False,
        "config": plain,
        "originalConfig": "",
        "numTrials": 0,
        "projectId": PLACE_ID,
        "projectOwnerId": requester.user_id,
        "searcherType": "",
        "startTime": "1970-01-01T00:00:00Z",
        "state": "STATE_UNSPECIFIED",
        "username": requester.user_name,
    }


def _pack_code(files: list[File], path: Path) -> None:
    with tarfile.open(path, "w:gz", compresslevel=1, format=tarfile.PAX_FORMAT) as archive:
        for file in files:
            _add(archive, file)


def _add(archive: tarfile.TarFile, file: File) -> None:
    if file.type not in (_FILE, _FOLDER):
        raise refuse(400, f"{file.path!r} is neither a file nor a folder. Nothing was recorded.")
    info = tarfile.TarInfo(file.path)
    if file.type == _FOLDER:
        info.type = tarfile.DIRTYPE
        info.mode = 0o755
        archive.addfile(info)
        return
    info.mode = 0o755 if file.mode & 0o100 else 0o644
    try:
        data = base64.b64decode(file.content, validate=True)
    except binascii.Error as error:
        raise refuse(400, f"{file.path!r} is not in base 64: {error}") from None
    info.size = len(data)
    archive.addfile(info, io.BytesIO(data))
