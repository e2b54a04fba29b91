"""What the workers of a trial ask, besides the spool that they send.

A token of a trial is good for these routes and that one, and for its own trial.
"""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query
from pydantic import StringConstraints

from detcore.database import CheckpointRecord
from detcore.delivery import add_missing_checkpoints
from detcore.remote.reporting import checkpoint_to_document
from detcore.server._auth import Id, State, Worker

__all__ = ["make_router"]

_PREFIX = "/api/detcore/v1/worker/trials/{trial_id}"
# Names of metrics are indexed; longer ones are never the best.
_Metric = Annotated[str, Query(max_length=512)]
_Uuid = Annotated[str, Query(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]
_State = Annotated[str, StringConstraints(pattern=r"^[A-Z_]{1,20}$")]
_States = Annotated[list[_State] | None, Query(alias="state", max_length=16)]


def make_router() -> APIRouter:
    """Return the routes of this part."""
    router = APIRouter(prefix=_PREFIX, tags=["workers"])

    @router.get("/best-of-others")
    def best_of_others(
        state: State, _: Worker, trial_id: Id, metric: _Metric, smaller_is_better: bool
    ) -> dict[str, str | None]:
        """Return the best value of a validation metric over the experiment's other trials.

        As a text, because JSON has no infinities.
        """
        state.database.get_trial(trial_id)
        found = state.database.best_of_other_trials(
            trial_id, metric, smaller_is_better=smaller_is_better
        )
        return {"value": None if found is None else repr(found)}

    @router.get("/checkpoint")
    def checkpoint(state: State, _: Worker, trial_id: Id, uuid: _Uuid) -> dict[str, Any]:
        """Return a checkpoint, also another trial's: what a trial starts from may be one."""
        state.database.get_trial(trial_id)
        return checkpoint_to_document(state.database.get_checkpoint(uuid))

    @router.get("/checkpoints")
    def checkpoints(
        state: State, _: Worker, trial_id: Id, wanted: _States = None
    ) -> list[dict[str, Any]]:
        """Return the trial's checkpoints, those in some states or all, oldest first."""
        state.database.get_trial(trial_id)
        found = state.database.list_checkpoints(trial_id=trial_id, states=wanted)
        return list(map(checkpoint_to_document, found))

    @router.get("/latest-checkpoint")
    def latest_checkpoint(state: State, _: Worker, trial_id: Id) -> dict[str, Any] | None:
        """Return the trial's checkpoint that it would go on from, or nothing."""
        state.database.get_trial(trial_id)
        found: CheckpointRecord | None = state.database.latest_checkpoint(trial_id)
        return None if found is None else checkpoint_to_document(found)

    @router.get("/untold-checkpoints")
    def untold_checkpoints(state: State, _: Worker, trial_id: Id) -> list[dict[str, Any]]:
        """Return the events of checkpoints that the trial's observers were not told of."""
        state.database.get_trial(trial_id)
        found: list[dict[str, Any]] = []
        add_missing_checkpoints(
            state.database,
            trial_id,
            lambda kind, payload: found.append({"kind": kind, "payload": payload}),
        )
        return found

    return router
