"""Routes that submit and follow experiments."""

from __future__ import annotations

import dataclasses
import functools
from typing import Annotated, Any

import anyio.to_thread
from fastapi import APIRouter, Path, Query, Request
from pydantic import BaseModel, ConfigDict, Field

from detcore.client.http.journal import journal_path, read_journal
from detcore.errors import InvalidArgumentError
from detcore.run import TrialResult, get_experiment_dir, read_results
from detcore.types import ExperimentState
from detcore_server.http.responses import AsciiJson
from detcore_server.jobs import submit
from detcore_server.jobs.uploads import MAX_UPLOAD_BYTES, Uploads
from detcore_server.server_database import TokenRecord
from detcore_server.server_state import ServerState
from detcore_server.users.authentication import Id, Requester, State

_PAGE_BYTES = 256 << 10
_MAX_TEXT = 1 << 20
_OCTETS = {
    "requestBody": {
        "required": True,
        "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
    }
}

Digest = Annotated[str, Path(pattern="^[0-9a-f]{64}$", description="SHA-256 of the archive.")]


class Uploaded(BaseModel):
    """Number of bytes of an archive on the server."""

    size: int


class Submission(BaseModel):
    """A submission of an experiment.

    Attributes:
        submission_id: Identifier chosen by the client, the same for all attempts.
        config: Experiment file (YAML).
        name: File name for messages.
        overrides: Settings by dotted name. Strings are parsed as YAML.
        environment: The user's ``DETCORE_CONFIG__...`` variables.
        test: Whether to run a smoke test with one batch, one validation and one checkpoint.
        archive: SHA-256 of the uploaded code archive (tar, gzip).
        archive_size: Size of the archive in bytes.
    """

    model_config = ConfigDict(extra="forbid")

    submission_id: str = Field(pattern="^[A-Za-z0-9_.-]{8,64}$")
    config: str = Field(max_length=_MAX_TEXT)
    name: str = Field(default="config", max_length=4096)
    overrides: dict[str, Any] = Field(default_factory=dict, max_length=1000)
    environment: dict[str, str] = Field(default_factory=dict, max_length=1000)
    test: bool = False
    archive: str = Field(pattern="^[0-9a-f]{64}$")
    archive_size: int = Field(ge=1, le=MAX_UPLOAD_BYTES)


class Submitted(BaseModel):
    """The result of a submission.

    Attributes:
        experiment_id: Id of the experiment. None: the code must be uploaded first.
        uploaded: Number of code bytes on the server.
        notices: Messages about settings and hyperparameters without effect.
    """

    experiment_id: int | None
    uploaded: int = 0
    notices: list[str] = Field(default_factory=list)


class Events(BaseModel):
    """The events of an experiment.

    Attributes:
        lines: Runner events as JSON objects, which may contain NaN and infinities.
        position: Position of the next event.
        state: State of the experiment.
        is_over: Whether the experiment has ended, unless a user activates it again.
        num_before: Number of experiments ahead in the queue. None: it has started.
    """

    lines: list[str]
    position: int
    state: ExperimentState
    error: str | None
    is_over: bool
    num_before: int | None


class Outcome(BaseModel):
    """The state of an experiment, and the outcomes of its trials.

    NaN and infinities are encoded as ``{"$number": "NaN"}``.
    """

    experiment_id: int
    state: ExperimentState
    error: str | None
    metric: str
    smaller_is_better: bool
    trials: list[TrialResult]


router = APIRouter(prefix="/api/detcore/v1", tags=["experiments"])


@router.get("/uploads/{digest}")
def get_upload(state: State, requester: Requester, digest: Digest) -> Uploaded:
    return Uploaded(size=_open_uploads(state, requester).size(digest))


@router.put("/uploads/{digest}", openapi_extra=_OCTETS)
async def put_upload(
    request: Request,
    state: State,
    requester: Requester,
    digest: Digest,
    offset: Annotated[int, Query(ge=0, le=MAX_UPLOAD_BYTES)],
) -> Uploaded:
    """Append a part of an archive, and return the resulting size."""
    data = await request.body()
    if not data:
        raise InvalidArgumentError("the body is empty; expected a part of the archive")
    size = await anyio.to_thread.run_sync(
        _open_uploads(state, requester).append, digest, offset, data
    )
    return Uploaded(size=size)


@router.post("/experiments")
async def accept_submission(
    state: State, requester: Requester, submission: Submission
) -> Submitted:
    """Accept an experiment with uploaded code. Repeated submissions are recorded once."""
    work = functools.partial(_accept, state, requester, submission)
    return await submit.in_time(work, state.submission_limiter)


@router.get("/experiments/{experiment_id}/events", response_model=Events)
def get_events(
    state: State,
    _: Requester,
    experiment_id: Id,
    position: Annotated[int, Query(ge=0, le=2**62)] = 0,
) -> AsciiJson:
    """Return the runner events from a position."""
    return AsciiJson(_read_events(state, experiment_id, position))


@router.get("/experiments/{experiment_id}/outcome", response_model=Outcome)
def get_outcome(state: State, _: Requester, experiment_id: Id) -> AsciiJson:
    """Return the state of an experiment and the outcomes of its trials."""
    return AsciiJson(_read_outcome(state, experiment_id))


def _open_uploads(state: ServerState, requester: TokenRecord) -> Uploads:
    return Uploads(state.settings.environment, requester.user_id)


def _accept(state: ServerState, requester: TokenRecord, submission: Submission) -> Submitted:
    existing_id = state.database.find_submission(requester.user_id, submission.submission_id)
    if existing_id is not None:
        return Submitted(experiment_id=existing_id)
    request = submit.Submission(
        text=submission.config,
        name=submission.name,
        overrides=submission.overrides,
        environment=submission.environment,
        test_mode=submission.test,
    )
    loaded, config = submit.check(request, state.settings)
    uploads = _open_uploads(state, requester)
    archive = uploads.find_finished(submission.archive, submission.archive_size)
    if archive is None:
        return Submitted(experiment_id=None, uploaded=uploads.size(submission.archive))
    try:
        experiment_id = submit.queue_experiment(
            archive,
            loaded=loaded,
            config=config,
            test_mode=submission.test,
            user_id=requester.user_id,
            submission_id=submission.submission_id,
            state=state,
        )
    except FileNotFoundError:
        existing_id = state.database.find_submission(requester.user_id, submission.submission_id)
        return Submitted(experiment_id=existing_id, uploaded=uploads.size(submission.archive))
    uploads.remove(submission.archive)
    return Submitted(experiment_id=experiment_id, notices=list(loaded.notices))


def _read_events(state: ServerState, experiment_id: int, position: int) -> dict[str, Any]:
    database = state.database
    # Read the state first, so that no line before the end is missed.
    record, is_alive = database.observe_experiment(experiment_id)
    is_running = record.state is ExperimentState.RUNNING
    num_before = None
    if is_running and database.get_submission(experiment_id) is None:
        is_running = is_alive
    elif is_running:
        num_before = state.jobs.num_before(experiment_id)
    path = journal_path(get_experiment_dir(state.settings.environment, experiment_id))
    lines, behind = read_journal(path, position, most_bytes=_PAGE_BYTES)
    return {
        "lines": lines,
        "position": behind,
        "state": record.state.value,
        "error": record.error,
        "is_over": not is_running and not lines,
        "num_before": num_before,
    }


def _read_outcome(state: ServerState, experiment_id: int) -> dict[str, Any]:
    record = state.database.get_experiment(experiment_id)
    metric = record.searcher.metric
    smaller_is_better = record.searcher.smaller_is_better is not False
    results = read_results(
        state.database, experiment_id, metric=metric or "", smaller_is_better=smaller_is_better
    )
    return {
        "experiment_id": experiment_id,
        "state": record.state.value,
        "error": record.error,
        "metric": metric,
        "smaller_is_better": smaller_is_better,
        "trials": [dataclasses.asdict(result) for result in results],
    }
