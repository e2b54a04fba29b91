"""The client's routes: one for each method of `detcore.client.Transport`."""

from __future__ import annotations

import json
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Path, Query, Response
from fastapi.responses import StreamingResponse
from pydantic import BaseModel, Field

from detcore.client import DOCUMENTS
from detcore.client.http import answer_read, encode_value
from detcore.types import ExperimentState
from detcore_server.api import model_routes
from detcore_server.api.client_models import (
    MAX_ENTRIES,
    ControlRequest,
    GlobsRequest,
    KeysRequest,
    Kind,
    Limit,
    Metadata,
    Page,
    TrialChange,
    TrialControlRequest,
    list_of,
)
from detcore_server.http.responses import FILE_CONTENT, AsciiJson, answer_file
from detcore_server.users.authentication import Requester, State, require_user

# Of any size: a number that no record can have is answered as not found.
ExperimentId = Annotated[int, Path(description="Number of the experiment.")]
TrialId = Annotated[int, Path(description="Number of the trial.")]
Metric = Annotated[str | None, Query(description="A validation metric; default: the searcher's.")]
Smaller = Annotated[bool | None, Query(description="Default: as the searcher says.")]
Distinct = Annotated[bool, Query(description="Only the best one of each trial.")]
Question = Annotated[str, Path(description="A method of Database that reads.", max_length=64)]
Uuid = Annotated[str, Path(description="The checkpoint's UUID, the whole of it.")]
CHECKPOINT = DOCUMENTS["checkpoint"]

experiments = APIRouter(prefix="/experiments", tags=["experiments"])
trials = APIRouter(prefix="/trials", tags=["trials"])
checkpoints = APIRouter(prefix="/checkpoints", tags=["checkpoints"])
router = APIRouter(prefix="/api/detcore/v1", dependencies=[Depends(require_user)])


class Read(BaseModel):
    """The arguments of a question, by name."""

    arguments: dict[str, Any] = Field(default_factory=dict, max_length=20)


@experiments.get("", response_model=list_of("experiment"))
def list_experiments(
    state: State,
    page: Page,
    state_is: Annotated[
        list[ExperimentState],
        Query(alias="state", description="Where they stand; default: anywhere."),
    ] = [],  # noqa: B006  (FastAPI copies it)
    label: Annotated[list[str], Query(description="Labels that all of them have.")] = [],  # noqa: B006
    name: Annotated[str, Query(description="What their names hold.")] = "",
    archived: Annotated[bool | None, Query(description="Default: both.")] = None,
    newest_first: Annotated[bool, Query(description="Default: the oldest first.")] = False,
) -> AsciiJson:
    """Return experiments, by number."""
    return AsciiJson(
        state.transport.list_experiments(
            states=state_is or None,
            labels=label,
            name=name,
            archived=archived,
            newest_first=newest_first,
            **page,
        )
    )


@experiments.get("/{experiment_id}", response_model=DOCUMENTS["experiment"])
def get_experiment(state: State, experiment_id: ExperimentId) -> AsciiJson:
    """Return an experiment; secrets in its configuration are shown as asterisks."""
    return AsciiJson(state.transport.get_experiment(experiment_id))


@experiments.post("/{experiment_id}/control", status_code=204)
def control_experiment(
    state: State, requester: Requester, experiment_id: ExperimentId, request: ControlRequest
) -> None:
    """Start, end or archive an experiment: only its owner and administrators may."""
    state.jobs.control(requester, experiment_id, request.action)


@experiments.delete("/{experiment_id}", status_code=204)
def delete_experiment(state: State, requester: Requester, experiment_id: ExperimentId) -> None:
    """Delete an experiment: its checkpoints' files, its trials, their metrics and logs."""
    state.jobs.control(requester, experiment_id, "delete")


@experiments.get("/{experiment_id}/trials", response_model=list_of("listed"))
def list_trials(
    state: State,
    page: Page,
    experiment_id: ExperimentId,
) -> AsciiJson:
    """Return the trials of an experiment, by number."""
    return AsciiJson(state.transport.list_trials(experiment_id, **page))


@experiments.get("/{experiment_id}/top-checkpoints", response_model=DOCUMENTS["top"])
def top_of_experiment(
    state: State,
    page: Page,
    experiment_id: ExperimentId,
    metric: Metric = None,
    smaller_is_better: Smaller = None,
    distinct_trials: Distinct = False,
) -> AsciiJson:
    """Return the complete checkpoints of an experiment, the best first."""
    return _list_top(
        state,
        page,
        experiment_id=experiment_id,
        trial_id=None,
        metric=metric,
        smaller_is_better=smaller_is_better,
        distinct_trials=distinct_trials,
    )


@trials.get("/{trial_id}", response_model=DOCUMENTS["trial"])
def get_trial(state: State, trial_id: TrialId) -> AsciiJson:
    """Return a trial."""
    return AsciiJson(state.transport.get_trial(trial_id))


@trials.patch("/{trial_id}", response_model=DOCUMENTS["trial"])
def update_trial(
    state: State, requester: Requester, trial_id: TrialId, request: TrialChange
) -> AsciiJson:
    """Change the notes or labels of a trial: only its owner and administrators may."""
    state.jobs.require_owner(requester, state.database.get_trial(trial_id).experiment_id)
    return AsciiJson(state.transport.update_trial(trial_id, **request.model_dump()))


@trials.post("/{trial_id}/control", status_code=204)
def control_trial(
    state: State, requester: Requester, trial_id: TrialId, request: TrialControlRequest
) -> None:
    """End a trial for good, while others of its search continue: its owner may."""
    state.jobs.control_trial(requester, trial_id, request.action)


@trials.get("/{trial_id}/metrics/{kind}", response_model=list_of("report"))
def list_metrics(
    state: State,
    page: Page,
    trial_id: TrialId,
    kind: Kind,
) -> AsciiJson:
    """Return the reports of a trial, by steps; of a step that several runs did, the last."""
    found = state.transport.list_metrics(trial_id, kind, **page)
    return AsciiJson(found)


@trials.get("/{trial_id}/log", response_model=DOCUMENTS["log"])
def read_log(
    state: State,
    trial_id: TrialId,
    position: Annotated[int, Query(ge=0, le=2**62, description="As a part before told.")] = 0,
    limit: Limit = MAX_ENTRIES,
) -> AsciiJson:
    """Return lines that the workers of a trial printed."""
    return AsciiJson(state.transport.read_log(trial_id, position=position, limit=limit))


@trials.get("/{trial_id}/checkpoints", response_model=list_of("checkpoint"))
def list_checkpoints(
    state: State,
    page: Page,
    trial_id: TrialId,
) -> AsciiJson:
    """Return the complete checkpoints of a trial, oldest first."""
    return AsciiJson(state.transport.list_checkpoints(trial_id, **page))


@trials.get("/{trial_id}/latest-checkpoint", response_model=DOCUMENTS["checkpoint"] | None)
def latest_checkpoint(state: State, trial_id: TrialId) -> AsciiJson:
    """Return the complete checkpoint of a trial with the most steps, or null."""
    return AsciiJson(state.transport.latest_checkpoint(trial_id))


@trials.get("/{trial_id}/top-checkpoints", response_model=DOCUMENTS["top"])
def top_of_trial(
    state: State,
    page: Page,
    trial_id: TrialId,
    metric: Metric = None,
    smaller_is_better: Smaller = None,
) -> AsciiJson:
    """Return the complete checkpoints of a trial, the best first."""
    return _list_top(
        state,
        page,
        experiment_id=None,
        trial_id=trial_id,
        metric=metric,
        smaller_is_better=smaller_is_better,
        distinct_trials=False,
    )


@trials.get("/{trial_id}/event-files", response_model=list_of("file"))
def list_event_files(
    state: State,
    page: Page,
    trial_id: TrialId,
) -> AsciiJson:
    """Return the event files of a trial that ran on this machine, by name."""
    return AsciiJson(state.transport.list_event_files(trial_id)[page["offset"] :][: page["limit"]])


@trials.get(
    "/{trial_id}/event-files/content", response_class=StreamingResponse, responses=FILE_CONTENT
)
def get_event_file(
    state: State,
    trial_id: TrialId,
    name: Annotated[str, Query(description="Of the file, below the trial's folder.")],
    offset: Annotated[int, Query(ge=0, le=2**62, description="Bytes to leave out.")] = 0,
) -> StreamingResponse:
    """Return an event file of a trial; it grows while the trial runs."""
    file, size = state.transport.open_event_file(trial_id, name)
    return answer_file(file, size, offset)


@checkpoints.get("", response_model=CHECKPOINT)
def find_checkpoint(
    state: State,
    uuid: Annotated[str, Query(description="A UUID, or a beginning that only one has.")],
) -> AsciiJson:
    """Return the checkpoint whose UUID is, or begins with, a text."""
    return AsciiJson(state.transport.get_checkpoint(uuid))


@checkpoints.patch("/{uuid}/metadata", response_model=CHECKPOINT)
def add_metadata(state: State, uuid: Uuid, request: Metadata) -> AsciiJson:
    """Add to a checkpoint's metadata; values of existing keys are replaced."""
    return AsciiJson(state.transport.add_checkpoint_metadata(uuid, request))


@checkpoints.post("/{uuid}/metadata/remove", response_model=CHECKPOINT)
def remove_metadata(state: State, uuid: Uuid, request: KeysRequest) -> AsciiJson:
    """Remove keys from a checkpoint's metadata."""
    return AsciiJson(state.transport.remove_checkpoint_metadata(uuid, request.keys))


@checkpoints.delete("/{uuid}", response_model=CHECKPOINT)
def delete_checkpoint(state: State, requester: Requester, uuid: Uuid) -> AsciiJson:
    """Delete a checkpoint's files, not its record: only the owner and administrators may."""
    _require_owner(state, requester, uuid)
    return AsciiJson(state.transport.delete_checkpoint(uuid, None))


@checkpoints.get("/{uuid}/files", response_model=DOCUMENTS["files"])
def list_files(state: State, uuid: Uuid) -> AsciiJson:
    """Return the stored files of a checkpoint that can be read, its manifest included."""
    return AsciiJson(state.transport.list_files(uuid))


@checkpoints.post("/{uuid}/files/remove", response_model=CHECKPOINT)
def remove_files(
    state: State, requester: Requester, uuid: Uuid, request: GlobsRequest
) -> AsciiJson:
    """Delete the files of a checkpoint that match: only the owner and administrators may."""
    _require_owner(state, requester, uuid)
    return AsciiJson(state.transport.delete_checkpoint(uuid, request.globs))


@checkpoints.get(
    "/{uuid}/files/content",
    response_class=StreamingResponse,
    responses=FILE_CONTENT,
)
def get_file(
    state: State,
    uuid: Uuid,
    name: Annotated[str, Query(description="Of the file, below the checkpoint.")],
    offset: Annotated[int, Query(ge=0, le=2**62, description="Bytes to leave out.")] = 0,
) -> StreamingResponse:
    """Return a file of a checkpoint; the manifest says which digest it must have."""
    file, size = state.transport.open_file(uuid, name)
    return answer_file(file, size, offset)


@router.post("/read/{name}", tags=["records"], response_model=Any)
def read(state: State, name: Question, request: Read) -> Response:
    """Call a method of the database that reads, as the commands that show records do."""
    answer = answer_read(state.database, name, request.arguments)
    return Response(json.dumps(encode_value(answer)), media_type="application/json")


def _list_top(state: State, page: Page, **query: Any) -> AsciiJson:
    offset = page["offset"]
    answer = state.transport.top_checkpoints(limit=offset + page["limit"], **query)
    return AsciiJson({**answer, "checkpoints": answer["checkpoints"][offset:]})


def _require_owner(state: State, requester: Requester, uuid: str) -> None:
    state.jobs.require_owner(requester, state.database.get_checkpoint(uuid).experiment_id)


for part in (experiments, trials, checkpoints, model_routes.router):
    router.include_router(part)
