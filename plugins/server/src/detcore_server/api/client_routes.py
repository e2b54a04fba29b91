"""Client routes, one for each method of `detcore.client.Transport`."""

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

# Numbers of any size. A number that no record can have is answered as not found.
ExperimentId = Annotated[int, Path(description="Id of the experiment.")]
TrialId = Annotated[int, Path(description="Id of the trial.")]
Metric = Annotated[
    str | None, Query(description="Validation metric. Default: the searcher's metric.")
]
Smaller = Annotated[bool | None, Query(description="Default: the searcher's setting.")]
Distinct = Annotated[bool, Query(description="Only the best checkpoint of each trial.")]
Question = Annotated[str, Path(description="Name of a reading method of Database.", max_length=64)]
Uuid = Annotated[str, Path(description="Complete UUID of the checkpoint.")]
CHECKPOINT = DOCUMENTS["checkpoint"]

experiments = APIRouter(prefix="/experiments", tags=["experiments"])
trials = APIRouter(prefix="/trials", tags=["trials"])
checkpoints = APIRouter(prefix="/checkpoints", tags=["checkpoints"])
router = APIRouter(prefix="/api/detcore/v1", dependencies=[Depends(require_user)])


class Read(BaseModel):
    """Arguments of the method, by name."""

    arguments: dict[str, Any] = Field(default_factory=dict, max_length=20)


@experiments.get("", response_model=list_of("experiment"))
def list_experiments(
    state: State,
    page: Page,
    state_is: Annotated[
        list[ExperimentState],
        Query(alias="state", description="States. Default: any state."),
    ] = [],  # noqa: B006  (FastAPI copies it)
    label: Annotated[list[str], Query(description="Labels that an experiment must have.")] = [],  # noqa: B006
    name: Annotated[str, Query(description="Text that a name must contain.")] = "",
    archived: Annotated[bool | None, Query(description="Default: both.")] = None,
    newest_first: Annotated[bool, Query(description="Default: oldest first.")] = False,
) -> AsciiJson:
    """Return experiments, ordered by id."""
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
    """Return an experiment. Secrets in its configuration are masked."""
    return AsciiJson(state.transport.get_experiment(experiment_id))


@experiments.post("/{experiment_id}/control", status_code=204)
def control_experiment(
    state: State, requester: Requester, experiment_id: ExperimentId, request: ControlRequest
) -> None:
    """Start, end or archive an experiment. Only its owner and administrators may do this."""
    state.jobs.control(requester, experiment_id, request.action)


@experiments.delete("/{experiment_id}", status_code=204)
def delete_experiment(state: State, requester: Requester, experiment_id: ExperimentId) -> None:
    """Delete an experiment with its trials, metrics, logs and checkpoint files."""
    state.jobs.control(requester, experiment_id, "delete")


@experiments.get("/{experiment_id}/trials", response_model=list_of("listed"))
def list_trials(
    state: State,
    page: Page,
    experiment_id: ExperimentId,
) -> AsciiJson:
    """Return the trials of an experiment, ordered by id."""
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
    """Return the complete checkpoints of an experiment, best first."""
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
    """Change the notes or labels of a trial. Only its owner and administrators may do this."""
    state.jobs.require_owner(requester, state.database.get_trial(trial_id).experiment_id)
    return AsciiJson(state.transport.update_trial(trial_id, **request.model_dump()))


@trials.post("/{trial_id}/control", status_code=204)
def control_trial(
    state: State, requester: Requester, trial_id: TrialId, request: TrialControlRequest
) -> None:
    """End a trial permanently while its search continues. Only its owner may do this."""
    state.jobs.control_trial(requester, trial_id, request.action)


@trials.get("/{trial_id}/metrics/{kind}", response_model=list_of("report"))
def list_metrics(
    state: State,
    page: Page,
    trial_id: TrialId,
    kind: Kind,
) -> AsciiJson:
    """Return the reports of a trial by step. Of repeated steps, the last run's report counts."""
    rows = state.transport.list_metrics(trial_id, kind, **page)
    return AsciiJson(rows)


@trials.get("/{trial_id}/log", response_model=DOCUMENTS["log"])
def read_log(
    state: State,
    trial_id: TrialId,
    position: Annotated[
        int, Query(ge=0, le=2**62, description="Position from a previous response.")
    ] = 0,
    limit: Limit = MAX_ENTRIES,
) -> AsciiJson:
    """Return output lines of a trial's workers."""
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
    """Return the latest complete checkpoint of a trial, or null."""
    return AsciiJson(state.transport.latest_checkpoint(trial_id))


@trials.get("/{trial_id}/top-checkpoints", response_model=DOCUMENTS["top"])
def top_of_trial(
    state: State,
    page: Page,
    trial_id: TrialId,
    metric: Metric = None,
    smaller_is_better: Smaller = None,
) -> AsciiJson:
    """Return the complete checkpoints of a trial, best first."""
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
    """Return the event files of a trial on this machine, ordered by name."""
    return AsciiJson(state.transport.list_event_files(trial_id)[page["offset"] :][: page["limit"]])


@trials.get(
    "/{trial_id}/event-files/content", response_class=StreamingResponse, responses=FILE_CONTENT
)
def get_event_file(
    state: State,
    trial_id: TrialId,
    name: Annotated[str, Query(description="File name relative to the trial's directory.")],
    offset: Annotated[int, Query(ge=0, le=2**62, description="Number of bytes to skip.")] = 0,
) -> StreamingResponse:
    """Return an event file of a trial. The file grows while the trial runs."""
    file, size = state.transport.open_event_file(trial_id, name)
    return answer_file(file, size, offset)


@checkpoints.get("", response_model=CHECKPOINT)
def find_checkpoint(
    state: State,
    uuid: Annotated[str, Query(description="UUID or a unique prefix.")],
) -> AsciiJson:
    """Return the checkpoint with a UUID or a unique UUID prefix."""
    return AsciiJson(state.transport.get_checkpoint(uuid))


@checkpoints.patch("/{uuid}/metadata", response_model=CHECKPOINT)
def add_metadata(state: State, uuid: Uuid, request: Metadata) -> AsciiJson:
    """Add or replace entries in a checkpoint's metadata."""
    return AsciiJson(state.transport.add_checkpoint_metadata(uuid, request))


@checkpoints.post("/{uuid}/metadata/remove", response_model=CHECKPOINT)
def remove_metadata(state: State, uuid: Uuid, request: KeysRequest) -> AsciiJson:
    """Remove keys from a checkpoint's metadata."""
    return AsciiJson(state.transport.remove_checkpoint_metadata(uuid, request.keys))


@checkpoints.delete("/{uuid}", response_model=CHECKPOINT)
def delete_checkpoint(state: State, requester: Requester, uuid: Uuid) -> AsciiJson:
    """Delete a checkpoint's files and keep its record. Only the owner and administrators may."""
    _require_owner(state, requester, uuid)
    return AsciiJson(state.transport.delete_checkpoint(uuid, None))


@checkpoints.get("/{uuid}/files", response_model=DOCUMENTS["files"])
def list_files(state: State, uuid: Uuid) -> AsciiJson:
    """Return the stored files of a checkpoint, including its manifest."""
    return AsciiJson(state.transport.list_files(uuid))


@checkpoints.post("/{uuid}/files/remove", response_model=CHECKPOINT)
def remove_files(
    state: State, requester: Requester, uuid: Uuid, request: GlobsRequest
) -> AsciiJson:
    """Delete matching files of a checkpoint. Only the owner and administrators may do this."""
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
    name: Annotated[str, Query(description="File name relative to the checkpoint.")],
    offset: Annotated[int, Query(ge=0, le=2**62, description="Number of bytes to skip.")] = 0,
) -> StreamingResponse:
    """Return a file of a checkpoint. The manifest contains its digest."""
    file, size = state.transport.open_file(uuid, name)
    return answer_file(file, size, offset)


@router.post("/read/{name}", tags=["records"], response_model=Any)
def read(state: State, name: Question, request: Read) -> Response:
    """Call a reading method of the database, for commands that show records."""
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
