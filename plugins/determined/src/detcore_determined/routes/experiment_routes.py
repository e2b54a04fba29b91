"""Experiments: lists, descriptions, and actions."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any

from fastapi import Path, Query, Response
from pydantic import BaseModel, Field

from detcore.records import ExperimentRecord
from detcore.types import ExperimentState
from detcore_determined.routes import enums
from detcore_determined.routes.cluster_routes import PLACE_ID
from detcore_determined.routes.record_documents import experiment_document, known_states
from detcore_determined.routes.response_models import (
    Document,
    ListPart,
    Numbers,
    Text,
    Texts,
    answer,
    answer_page,
    new_router,
    refuse,
)
from detcore_server import Requester
from detcore_server.routes import Id, ServerState, State, SubmissionRecord

_DEFAULT_LIMIT = 100
_NEVER = datetime.datetime.max.replace(tzinfo=datetime.timezone.utc)
_ACTIONS = ("activate", "archive", "cancel", "kill", "pause", "unarchive")
_OVER = (ExperimentState.COMPLETED, ExperimentState.CANCELED, ExperimentState.ERROR)
_PHASES = ("QUEUED", "STARTED", "ENDED")


class Filters(ListPart, extra="forbid"):
    """Filter, order and page of a list of experiments."""

    archived: bool | None = None
    ids: Numbers = Field([], alias="experimentIdFilter.incl")
    labels: Texts = []
    name: Text = ""
    project_id: int = Field(0, ge=-1, le=2**31 - 1, alias="projectId")
    states: list[enums.State] = Field([], max_length=100)
    users: Texts = []
    sort_by: enums.ExperimentSort = Field(enums.ExperimentSort.UNSPECIFIED, alias="sortBy")
    order_by: enums.Order = Field(enums.Order.UNSPECIFIED, alias="orderBy")


class Patch(BaseModel):
    """Changes to an experiment. Missing or null fields do not change."""

    name: Text | None = None
    description: Text | None = None
    labels: list[Text] | None = None
    notes: Text | None = None
    resources: dict[str, Any] | None = None
    checkpointStorage: dict[str, Any] | None = None


# Labels may contain slashes, which the client does not quote.
_Label = Annotated[Text, Path(min_length=1)]

router = new_router()


@router.get("/api/v1/experiments")
def list_experiments(
    state: State, requester: Requester, filters: Annotated[Filters, Query()]
) -> Response:
    """List experiments, by default sorted by id."""
    database = state.database
    submissions = {item.experiment_id: item for item in database.list_submissions(phases=_PHASES)}
    num_trials = database.count_trials()
    states = known_states(filters.states)
    is_empty = filters.project_id not in (0, PLACE_ID) or states == []
    records = [] if is_empty else database.list_experiments(
        states=states, archived=filters.archived, labels=filters.labels, name=filters.name
    )  # fmt: skip

    def get_owner(record: ExperimentRecord) -> tuple[int, str]:
        return _owner(requester, submissions.get(record.id))

    records = [
        record
        for record in records
        if (not filters.ids or record.id in filters.ids)
        and (not filters.users or get_owner(record)[1] in filters.users)
    ]
    _sort_experiments(records, filters, num_trials)

    def describe(records: Sequence[ExperimentRecord]) -> list[Document]:
        return [
            experiment_document(
                record,
                owner=get_owner(record),
                num_trials=num_trials.get(record.id, 0),
                is_alive=is_alive,
                is_queued=_is_queued(submissions.get(record.id)),
            )
            for record, is_alive in (_observed(state, record) for record in records)
        ]

    part = filters.model_copy(update={"limit": filters.limit or _DEFAULT_LIMIT})
    return answer_page("experiments", records, describe, part)


@router.get("/api/v1/experiments/{experiment_id}")
def get_experiment(state: State, requester: Requester, experiment_id: Id) -> Response:
    """Return an experiment."""
    document = describe_experiment(state, requester, experiment_id)
    return answer({"experiment": document, "config": document["config"]})


@router.patch("/api/v1/experiments/{experiment_id}")
def patch_experiment(
    state: State, requester: Requester, experiment_id: Id, body: Patch
) -> Response:
    """Change name, description, notes or labels of an experiment."""
    if body.resources or body.checkpointStorage:
        raise refuse(
            400,
            "detcore gives experiments no resources, and the experiment file determines which "
            "checkpoints are kept; nothing was changed",
        )
    state.jobs.require_owner(requester, experiment_id)
    state.database.describe_experiment(
        experiment_id,
        name=body.name,
        description=body.description,
        notes=body.notes,
        labels=body.labels,
    )
    return answer({"experiment": describe_experiment(state, requester, experiment_id)})


@router.put("/api/v1/experiments/{experiment_id}/labels/{label:path}")
def put_label(state: State, requester: Requester, experiment_id: Id, label: _Label) -> Response:
    """Add a label to an experiment."""
    state.jobs.require_owner(requester, experiment_id)
    labels = state.database.describe_experiment(experiment_id, add_labels=[label])
    return answer({"labels": labels})


@router.delete("/api/v1/experiments/{experiment_id}/labels/{label:path}")
def delete_label(state: State, requester: Requester, experiment_id: Id, label: _Label) -> Response:
    """Remove a label from an experiment."""
    state.jobs.require_owner(requester, experiment_id)
    labels = state.database.describe_experiment(experiment_id, remove_labels=[label])
    return answer({"labels": labels})


@router.delete("/api/v1/experiments/{experiment_id}")
def delete_experiment(state: State, requester: Requester, experiment_id: Id) -> Response:
    """Delete an experiment with its checkpoints, unless the model registry has a checkpoint."""
    state.jobs.control(requester, experiment_id, "delete")
    return answer({})


def _add_action(action: str) -> None:
    @router.post(
        f"/api/v1/experiments/{{experiment_id}}/{action}", operation_id=f"determined_{action}"
    )
    def control(state: State, requester: Requester, experiment_id: Id) -> Response:
        """Pause, activate, end, archive or unarchive an experiment.

        Ending a completed experiment has no effect.
        """
        if _is_over(state, experiment_id) and action in ("cancel", "kill"):
            state.jobs.require_owner(requester, experiment_id)
        else:
            state.jobs.control(requester, experiment_id, action)
        return answer({})


for action in _ACTIONS:
    _add_action(action)


def describe_experiment(state: ServerState, requester: Requester, experiment_id: int) -> Document:
    """Return an experiment."""
    database = state.database
    is_alive = database.is_experiment_alive(experiment_id)
    submission = database.get_submission(experiment_id)
    return experiment_document(
        database.get_experiment(experiment_id),
        owner=_owner(requester, submission),
        num_trials=database.count_trials().get(experiment_id, 0),
        is_alive=is_alive,
        is_queued=_is_queued(submission),
    )


def _is_over(state: ServerState, experiment_id: int) -> bool:
    """Return whether an experiment has ended and will not restart."""
    submission = state.database.get_submission(experiment_id)
    is_ended = submission is None or submission.phase == "ENDED"
    return is_ended and state.database.get_experiment(experiment_id).state in _OVER


def _observed(state: ServerState, record: ExperimentRecord) -> tuple[ExperimentRecord, bool]:
    """Return an experiment and whether its process is alive; a running experiment is read again."""
    if record.state is not ExperimentState.RUNNING:
        return record, False
    return state.database.observe_experiment(record.id)


def _owner(requester: Requester, submission: SubmissionRecord | None) -> tuple[int, str]:
    """Return an experiment's owner: the submitter, or the requester without a submission."""
    if submission is None:
        return requester.user_id, requester.user_name
    return submission.user_id, submission.user_name


def _is_queued(submission: SubmissionRecord | None) -> bool:
    return submission is not None and submission.phase == "QUEUED"


def _sort_experiments(
    records: list[ExperimentRecord], filters: Filters, num_trials: Mapping[int, int]
) -> None:
    """Sort experiments in place; ties are sorted by id."""
    sort = enums.ExperimentSort
    keys: Mapping[enums.ExperimentSort, Callable[[ExperimentRecord], Any]] = {
        sort.ID: lambda record: record.id,
        sort.DESCRIPTION: lambda record: str(record.config.get("description") or "").casefold(),
        sort.START_TIME: lambda record: record.created_at,
        sort.END_TIME: lambda record: record.ended_at or _NEVER,
        sort.STATE: lambda record: record.state.value,
        sort.NUM_TRIALS: lambda record: num_trials.get(record.id, 0),
        sort.PROGRESS: lambda record: record.progress or 0.0,
        sort.NAME: lambda record: record.name.casefold(),
    }
    key = keys.get(filters.sort_by) or keys[sort.ID]
    records.sort(key=lambda record: (key(record), record.id))
    if filters.order_by is enums.Order.DESC:
        records.reverse()
