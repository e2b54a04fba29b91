"""The client's routes: one for each method of `detcore.experimental.Transport`."""

from __future__ import annotations

import json
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Response
from fastapi.responses import StreamingResponse
from pydantic import BaseModel, Field

from detcore.experimental.http import answer_read, spell_document
from detcore.types import ExperimentState
from detcore_server import _model_routes
from detcore_server._answers import FILE_CONTENT, AsciiJson, answer_file
from detcore_server._auth import Requester, State
from detcore_server._client_models import (
    MOST_ENTRIES,
    ControlRequest,
    GlobsRequest,
    KeysRequest,
    Kind,
    Metadata,
    TrialChange,
    TrialControlRequest,
    answer_to,
    list_of,
)

_PREFIX = "/api/detcore/v1"
# Of any size: a number that no record can have is answered as not found.
ExperimentId = Annotated[int, Path(description="Number of the experiment.")]
TrialId = Annotated[int, Path(description="Number of the trial.")]
Limit = Annotated[int, Query(ge=1, le=MOST_ENTRIES, description="Entries at most.")]
Offset = Annotated[int, Query(ge=0, le=2**31 - 1, description="Entries to leave out.")]
Metric = Annotated[str | None, Query(description="A validation metric; default: the searcher's.")]
Smaller = Annotated[bool | None, Query(description="Default: as the searcher says.")]
Distinct = Annotated[bool, Query(description="Only the best one of each trial.")]
Question = Annotated[str, Path(description="A method of Database that reads.", max_length=64)]
Uuid = Annotated[str, Path(description="The checkpoint's UUID, the whole of it.")]
CHECKPOINT = answer_to("checkpoint")


class Read(BaseModel):
    """The arguments of a question, by name."""

    arguments: dict[str, Any] = Field(default_factory=dict, max_length=20)


def make_router() -> APIRouter:
    """Return the routes of this part."""
    router = APIRouter(prefix=_PREFIX, default_response_class=AsciiJson)
    _add_experiments(router)
    _add_trials(router)
    _add_event_files(router)
    _add_checkpoint_routes(router)
    _model_routes.add_routes(router)

    @router.post("/read/{name}", tags=["records"], response_model=Any)
    def read(state: State, _: Requester, name: Question, request: Read) -> Response:
        """Call a method of the database that reads, as the commands that show records do."""
        answer = answer_read(state.database, name, request.arguments)
        return Response(json.dumps(spell_document(answer)), media_type="application/json")

    return router


def _add_experiments(router: APIRouter) -> None:
    path = "/experiments/{experiment_id}"

    @router.get("/experiments", response_model=list_of("experiment"), tags=["experiments"])
    def list_experiments(
        state: State,
        _: Requester,
        state_is: Annotated[
            list[ExperimentState],
            Query(alias="state", description="Where they stand; default: anywhere."),
        ] = [],  # noqa: B006  (FastAPI copies it)
        label: Annotated[list[str], Query(description="Labels that all of them have.")] = [],  # noqa: B006
        name: Annotated[str, Query(description="What their names hold.")] = "",
        archived: Annotated[bool | None, Query(description="Default: both.")] = None,
        newest_first: Annotated[bool, Query(description="Default: the oldest first.")] = False,
        limit: Limit = MOST_ENTRIES,
        offset: Offset = 0,
    ) -> AsciiJson:
        """Return experiments, by number."""
        return AsciiJson(
            state.transport.list_experiments(
                states=[each.value for each in state_is] or None,
                labels=label,
                name=name,
                archived=archived,
                newest_first=newest_first,
                limit=limit,
                offset=offset,
            )
        )

    @router.get(path, response_model=answer_to("experiment"), tags=["experiments"])
    def get_experiment(state: State, _: Requester, experiment_id: ExperimentId) -> AsciiJson:
        """Return an experiment; secrets in its configuration are shown as asterisks."""
        return AsciiJson(state.transport.get_experiment(experiment_id))

    @router.post(f"{path}/control", status_code=204, tags=["experiments"])
    def control_experiment(
        state: State, requester: Requester, experiment_id: ExperimentId, request: ControlRequest
    ) -> None:
        """Start, end or archive an experiment: only its owner and administrators may."""
        state.jobs.control(requester, experiment_id, request.action)

    @router.delete(path, status_code=204, tags=["experiments"])
    def delete_experiment(state: State, requester: Requester, experiment_id: ExperimentId) -> None:
        """Delete an experiment: its checkpoints' files, its trials, their metrics and logs."""
        state.jobs.control(requester, experiment_id, "delete")

    @router.get(f"{path}/trials", response_model=list_of("listed"), tags=["experiments"])
    def list_trials(
        state: State,
        _: Requester,
        experiment_id: ExperimentId,
        limit: Limit = MOST_ENTRIES,
        offset: Offset = 0,
    ) -> AsciiJson:
        """Return the trials of an experiment, by number."""
        return AsciiJson(state.transport.list_trials(experiment_id, limit=limit, offset=offset))

    @router.get(f"{path}/top-checkpoints", response_model=answer_to("top"), tags=["experiments"])
    def top_of_experiment(
        state: State,
        _: Requester,
        experiment_id: ExperimentId,
        metric: Metric = None,
        smaller_is_better: Smaller = None,
        distinct_trials: Distinct = False,
        limit: Limit = MOST_ENTRIES,
        offset: Offset = 0,
    ) -> AsciiJson:
        """Return the complete checkpoints of an experiment, the best first."""
        found = state.transport.top_checkpoints(
            experiment_id=experiment_id,
            trial_id=None,
            metric=metric,
            smaller_is_better=smaller_is_better,
            limit=offset + limit,
            distinct_trials=distinct_trials,
        )
        return AsciiJson({**found, "checkpoints": found["checkpoints"][offset:]})


def _add_trials(router: APIRouter) -> None:
    path = "/trials/{trial_id}"

    @router.get(path, response_model=answer_to("trial"), tags=["trials"])
    def get_trial(state: State, _: Requester, trial_id: TrialId) -> AsciiJson:
        """Return a trial."""
        return AsciiJson(state.transport.get_trial(trial_id))

    @router.patch(path, response_model=answer_to("trial"), tags=["trials"])
    def update_trial(
        state: State, requester: Requester, trial_id: TrialId, request: TrialChange
    ) -> AsciiJson:
        """Change the notes or labels of a trial: only its owner and administrators may."""
        state.jobs.require_owner(requester, state.database.get_trial(trial_id).experiment_id)
        return AsciiJson(state.transport.update_trial(trial_id, **request.model_dump()))

    @router.post(f"{path}/control", status_code=204, tags=["trials"])
    def control_trial(
        state: State, requester: Requester, trial_id: TrialId, request: TrialControlRequest
    ) -> None:
        """End a trial for good, while others of its search continue: its owner may."""
        state.jobs.control_trial(requester, trial_id, request.action)

    @router.get(f"{path}/metrics/{{kind}}", response_model=list_of("report"), tags=["trials"])
    def list_metrics(
        state: State,
        _: Requester,
        trial_id: TrialId,
        kind: Kind,
        limit: Limit = MOST_ENTRIES,
        offset: Offset = 0,
    ) -> AsciiJson:
        """Return the reports of a trial, by steps; of a step that several runs did, the last."""
        found = state.transport.list_metrics(trial_id, kind, limit=limit, offset=offset)
        return AsciiJson(found)

    @router.get(f"{path}/log", response_model=answer_to("log"), tags=["trials"])
    def read_log(
        state: State,
        _: Requester,
        trial_id: TrialId,
        position: Annotated[int, Query(ge=0, le=2**62, description="As a part before told.")] = 0,
        limit: Limit = MOST_ENTRIES,
    ) -> AsciiJson:
        """Return lines that the workers of a trial printed."""
        return AsciiJson(state.transport.read_log(trial_id, position=position, limit=limit))

    @router.get(f"{path}/checkpoints", response_model=list_of("checkpoint"), tags=["trials"])
    def list_checkpoints(
        state: State,
        _: Requester,
        trial_id: TrialId,
        limit: Limit = MOST_ENTRIES,
        offset: Offset = 0,
    ) -> AsciiJson:
        """Return the complete checkpoints of a trial, oldest first."""
        return AsciiJson(state.transport.list_checkpoints(trial_id, limit=limit, offset=offset))

    @router.get(
        f"{path}/latest-checkpoint", response_model=answer_to("checkpoint") | None, tags=["trials"]
    )
    def latest_checkpoint(state: State, _: Requester, trial_id: TrialId) -> AsciiJson:
        """Return the complete checkpoint of a trial with the most steps, or null."""
        return AsciiJson(state.transport.latest_checkpoint(trial_id))

    @router.get(f"{path}/top-checkpoints", response_model=answer_to("top"), tags=["trials"])
    def top_of_trial(
        state: State,
        _: Requester,
        trial_id: TrialId,
        metric: Metric = None,
        smaller_is_better: Smaller = None,
        limit: Limit = MOST_ENTRIES,
        offset: Offset = 0,
    ) -> AsciiJson:
        """Return the complete checkpoints of a trial, the best first."""
        found = state.transport.top_checkpoints(
            experiment_id=None,
            trial_id=trial_id,
            metric=metric,
            smaller_is_better=smaller_is_better,
            limit=offset + limit,
            distinct_trials=False,
        )
        return AsciiJson({**found, "checkpoints": found["checkpoints"][offset:]})


def _add_event_files(router: APIRouter) -> None:
    path = "/trials/{trial_id}/event-files"

    @router.get(path, response_model=list_of("file"), tags=["trials"])
    def list_event_files(
        state: State,
        _: Requester,
        trial_id: TrialId,
        limit: Limit = MOST_ENTRIES,
        offset: Offset = 0,
    ) -> AsciiJson:
        """Return the event files of a trial that ran on this machine, by name."""
        return AsciiJson(state.transport.list_event_files(trial_id)[offset : offset + limit])

    @router.get(
        f"{path}/content", response_class=StreamingResponse, responses=FILE_CONTENT, tags=["trials"]
    )
    def get_event_file(
        state: State,
        _: Requester,
        trial_id: TrialId,
        name: Annotated[str, Query(description="Of the file, below the trial's folder.")],
        offset: Annotated[int, Query(ge=0, le=2**62, description="Bytes to leave out.")] = 0,
    ) -> StreamingResponse:
        """Return an event file of a trial; it grows while the trial runs."""
        file, size = state.transport.open_event_file(trial_id, name)
        return answer_file(file, size, offset)


def _add_checkpoint_routes(router: APIRouter) -> None:
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
