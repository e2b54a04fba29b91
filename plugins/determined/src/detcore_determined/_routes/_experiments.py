"""Experiments: lists, descriptions, and actions."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Mapping
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Response
from pydantic import BaseModel, Field

from detcore.database import ExperimentRecord
from detcore.types import ExperimentState, searcher_metric
from detcore_determined._routes import _enums
from detcore_determined._routes._answers import (
    Document,
    Limit,
    Numbers,
    Offset,
    Text,
    Texts,
    answer,
    new_router,
    page,
    part,
    refuse,
)
from detcore_determined._routes._documents import (
    experiment_document,
    known_states,
)
from detcore_determined._routes._places import PLACE_ID
from detcore_server import Requester
from detcore_server.routes import Id, ServerState, State, SubmissionRecord

_DEFAULT_LIMIT = 100
_NEVER = datetime.datetime.max.replace(tzinfo=datetime.timezone.utc)
_ACTIONS = ("activate", "archive", "cancel", "kill", "pause", "unarchive")
_OVER = (ExperimentState.COMPLETED, ExperimentState.CANCELED, ExperimentState.ERROR)
_PHASES = ("QUEUED", "STARTED", "ENDED")


class Filters(BaseModel):
    """Which experiments are listed, in which order, and which part of the list."""

    archived: bool | None = None
    description: Text = ""
    above: int | None = Field(None, ge=-(2**31), le=2**31 - 1, alias="experimentIdFilter.gt")
    from_: int | None = Field(None, ge=-(2**31), le=2**31 - 1, alias="experimentIdFilter.gte")
    among: Numbers = Field([], alias="experimentIdFilter.incl")
    below: int | None = Field(None, ge=-(2**31), le=2**31 - 1, alias="experimentIdFilter.lt")
    to: int | None = Field(None, ge=-(2**31), le=2**31 - 1, alias="experimentIdFilter.lte")
    without: Numbers = Field([], alias="experimentIdFilter.notIn")
    labels: Texts = []
    name: Text = ""
    project_id: int = Field(0, ge=-1, le=2**31 - 1, alias="projectId")
    states: list[_enums.State] = Field([], max_length=100)
    user_ids: Numbers = Field([], alias="userIds")
    users: Texts = []
    sort_by: _enums.ExperimentSort = Field(_enums.ExperimentSort.UNSPECIFIED, alias="sortBy")
    order_by: _enums.Order = Field(_enums.Order.UNSPECIFIED, alias="orderBy")
    limit: Limit = 0
    offset: Offset = 0

    @property
    def is_descending(self) -> bool:
        """Whether the list is in descending order."""
        return self.order_by is _enums.Order.DESC

    @property
    def by_id(self) -> bool:
        """Whether the list is sorted by id."""
        sort = _enums.ExperimentSort
        return self.sort_by in (sort.UNSPECIFIED, sort.ID, sort.START_TIME)

    @property
    def narrow(self) -> bool:
        """Whether there are filters that the database does not support."""
        bounds = (self.above, self.from_, self.below, self.to)
        sets = (self.among, self.without, self.user_ids)
        return bool(self.description or any(sets)) or any(bound is not None for bound in bounds)

    def let_through(self, record: ExperimentRecord, owner: tuple[int, str]) -> bool:
        """Return whether an experiment passes the filters that the database does not apply."""
        number = record.id
        description = str(record.config.get("description") or "")
        return (
            (self.above is None or number > self.above)
            and (self.from_ is None or number >= self.from_)
            and (self.below is None or number < self.below)
            and (self.to is None or number <= self.to)
            and (not self.among or number in self.among)
            and number not in self.without
            and self.description.casefold() in description.casefold()
            and (not self.user_ids or owner[0] in self.user_ids)
            and (not self.users or owner[1] in self.users)
        )


class Patch(BaseModel):
    """Changes to an experiment; a field that is missing or null stays as it is."""

    name: Text | None = None
    description: Text | None = None
    labels: list[Text] | None = None
    notes: Text | None = None
    resources: dict[str, Any] | None = None
    checkpointStorage: dict[str, Any] | None = None


# It may have slashes, which the client sends unquoted.
_Label = Annotated[Text, Path(min_length=1)]


def make_router() -> APIRouter:
    """Return the routes of this part."""
    router = new_router()

    @router.get("/api/v1/experiments")
    def list_experiments(
        state: State, requester: Requester, filters: Annotated[Filters, Query()]
    ) -> Response:
        """List experiments, by default sorted by id."""
        return answer(_list(state, requester, filters))

    @router.get("/api/v1/experiments/{experiment_id}")
    def get_experiment(state: State, requester: Requester, experiment_id: Id) -> Response:
        """Return an experiment."""
        found = one_experiment(state, requester, experiment_id)
        return answer({"experiment": found, "config": found["config"]})

    @router.patch("/api/v1/experiments/{experiment_id}")
    def patch_experiment(
        state: State, requester: Requester, experiment_id: Id, body: Patch
    ) -> Response:
        """Change name, description, notes or labels of an experiment."""
        if body.resources or body.checkpointStorage:
            raise refuse(
                400,
                "detcore gives experiments no resources, and the experiment file says which "
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
        return answer({"experiment": one_experiment(state, requester, experiment_id)})

    @router.put("/api/v1/experiments/{experiment_id}/labels/{label:path}")
    def put_label(state: State, requester: Requester, experiment_id: Id, label: _Label) -> Response:
        """Add a label to an experiment."""
        state.jobs.require_owner(requester, experiment_id)
        labels = state.database.describe_experiment(experiment_id, add_labels=[label])
        return answer({"labels": labels})

    @router.delete("/api/v1/experiments/{experiment_id}/labels/{label:path}")
    def delete_label(
        state: State, requester: Requester, experiment_id: Id, label: _Label
    ) -> Response:
        """Remove a label from an experiment."""
        state.jobs.require_owner(requester, experiment_id)
        labels = state.database.describe_experiment(experiment_id, remove_labels=[label])
        return answer({"labels": labels})

    @router.delete("/api/v1/experiments/{experiment_id}")
    def delete_experiment(state: State, requester: Requester, experiment_id: Id) -> Response:
        """Delete an experiment with its checkpoints; one in the model registry is refused."""
        state.jobs.control(requester, experiment_id, "delete")
        return answer({})

    for action in _ACTIONS:
        _add_action(router, action)
    return router


def one_experiment(state: ServerState, requester: Requester, experiment_id: int) -> Document:
    """Return an experiment with the values that lists do not have: checkpoints and best trial."""
    database = state.database
    is_alive = database.experiment_is_alive(experiment_id)
    record = database.get_experiment(experiment_id)
    submission = database.get_submission(experiment_id)
    document = experiment_document(
        record,
        owner=_owner(requester, submission),
        num_trials=database.count_trials().get(experiment_id, 0),
        is_alive=is_alive,
        is_queued=_is_queued(submission),
    )
    checkpoints = database.list_checkpoints(experiment_id=experiment_id)
    document["checkpointCount"] = len(checkpoints)
    document["checkpointSize"] = str(sum(found.size_bytes for found in checkpoints))
    metric, smaller_is_better = searcher_metric(record.config)
    if metric is not None:
        best = database.best_validation(experiment_id, metric, smaller_is_better=smaller_is_better)
        if best is not None:
            document["bestTrialId"] = best.trial_id
            document["bestTrialSearcherMetric"] = best.metrics[metric]
    return document


def _add_action(router: APIRouter, action: str) -> None:
    @router.post(
        f"/api/v1/experiments/{{experiment_id}}/{action}", operation_id=f"determined_{action}"
    )
    def control(state: State, requester: Requester, experiment_id: Id) -> Response:
        """Pause, activate, end, archive or unarchive an experiment.

        Ending an experiment that is over has no effect.
        """
        if _is_over(state, experiment_id) and action in ("cancel", "kill"):
            state.jobs.require_owner(requester, experiment_id)
        else:
            state.jobs.control(requester, experiment_id, action)
        return answer({})


def _is_over(state: ServerState, experiment_id: int) -> bool:
    """Return whether an experiment has ended and does not wait to begin again."""
    submission = state.database.get_submission(experiment_id)
    is_ended = submission is None or submission.phase == "ENDED"
    return is_ended and state.database.get_experiment(experiment_id).state in _OVER


def _list(state: ServerState, requester: Requester, filters: Filters) -> Document:
    database = state.database
    submissions = {
        found.experiment_id: found for found in database.list_submissions(phases=_PHASES)
    }
    num_trials = database.count_trials()
    limit = filters.limit or _DEFAULT_LIMIT
    records, total, start, end = _select(state, requester, filters, limit, submissions, num_trials)
    shown = [
        experiment_document(
            record,
            owner=_owner(requester, submissions.get(record.id)),
            num_trials=num_trials.get(record.id, 0),
            is_alive=is_alive,
            is_queued=_is_queued(submissions.get(record.id)),
        )
        for record, is_alive in (_observed(state, record) for record in records)
    ]
    where = page(total, start, end, limit=limit, offset=filters.offset)
    return {"experiments": shown, "pagination": where}


def _select(
    state: ServerState,
    requester: Requester,
    filters: Filters,
    limit: int,
    submissions: Mapping[int, SubmissionRecord],
    num_trials: Mapping[int, int],
) -> tuple[list[ExperimentRecord], int, int, int]:
    """Return the wanted part of the list, how long it is, and where the part begins and ends."""
    database = state.database
    states = known_states(filters.states)
    if filters.project_id not in (0, PLACE_ID) or states == []:
        return [], 0, 0, 0
    if (
        filters.by_id
        and not filters.narrow
        and (not filters.users or (requester.user_name in filters.users and not submissions))
    ):
        # The database filters and pages where it can: there may be thousands of experiments.
        total = database.count_experiments(
            states=states, archived=filters.archived, labels=filters.labels, name=filters.name
        )
        start, end = part(total, limit, filters.offset)
        records = [] if start == end else database.list_experiments(
            states=states, archived=filters.archived, labels=filters.labels, name=filters.name,
            newest_first=filters.is_descending, limit=end - start, offset=start,
        )  # fmt: skip
        return records, total, start, end
    records = [
        record
        for record in database.list_experiments(
            states=states, archived=filters.archived, labels=filters.labels, name=filters.name
        )
        if filters.let_through(record, _owner(requester, submissions.get(record.id)))
    ]
    _sort(records, filters, num_trials)
    start, end = part(len(records), limit, filters.offset)
    return records[start:end], len(records), start, end


def _observed(state: ServerState, record: ExperimentRecord) -> tuple[ExperimentRecord, bool | None]:
    """Return an experiment and whether its process is alive; a running one is read once more."""
    if record.state is not ExperimentState.RUNNING:
        return record, False
    return state.database.observe_experiment(record.id)


def _owner(requester: Requester, submission: SubmissionRecord | None) -> tuple[int, str]:
    """Return an experiment's owner; without a submission, the user who asks counts as its owner."""
    if submission is None:
        return requester.user_id, requester.user_name
    return submission.user_id, submission.user_name


def _is_queued(submission: SubmissionRecord | None) -> bool:
    return submission is not None and submission.phase == "QUEUED"


def _sort(records: list[ExperimentRecord], filters: Filters, num_trials: Mapping[int, int]) -> None:
    """Sort experiments in place, and equal ones by id."""
    sort = _enums.ExperimentSort
    keys: Mapping[_enums.ExperimentSort, Callable[[ExperimentRecord], Any]] = {
        sort.DESCRIPTION: lambda record: str(record.config.get("description") or "").casefold(),
        sort.START_TIME: lambda record: record.created_at,
        sort.END_TIME: lambda record: record.ended_at or _NEVER,
        sort.STATE: lambda record: record.state.value,
        sort.NUM_TRIALS: lambda record: num_trials.get(record.id, 0),
        sort.PROGRESS: lambda record: record.progress or 0.0,
        sort.NAME: lambda record: record.name.casefold(),
    }
    key = keys.get(filters.sort_by, _number)
    records.sort(key=lambda record: (key(record), record.id))
    if filters.is_descending:
        records.reverse()


def _number(record: ExperimentRecord) -> int:
    return record.id
