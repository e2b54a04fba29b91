"""The best checkpoints of an experiment or a trial."""

from __future__ import annotations

from typing import TYPE_CHECKING

from detcore.errors import NoCheckpointError
from detcore.experimental._arguments import check_text
from detcore.experimental._checkpoint import Checkpoint

if TYPE_CHECKING:
    from detcore.experimental._transport import Document, Transport

__all__ = ["best_checkpoint", "top_checkpoints"]


def best_checkpoint(
    transport: Transport,
    master: str | None,
    sort_by: str | None,
    smaller_is_better: bool | None,
    *,
    experiment_id: int | None = None,
    trial_id: int | None = None,
) -> Checkpoint:
    """Return the checkpoint with the best value of a metric.

    Raises:
        NoCheckpointError: If none has it.
    """
    return top_checkpoints(
        transport,
        master,
        sort_by,
        smaller_is_better,
        experiment_id=experiment_id,
        trial_id=trial_id,
        limit=1,
    )[0]


def top_checkpoints(
    transport: Transport,
    master: str | None,
    sort_by: str | None,
    smaller_is_better: bool | None,
    *,
    experiment_id: int | None = None,
    trial_id: int | None = None,
    limit: int | None,
) -> list[Checkpoint]:
    """Return the best checkpoints; of an experiment, one of each trial.

    Raises:
        NoCheckpointError: If there is no checkpoint, or none has the metric: where the name of a
            metric is mistyped, any checkpoint would be as good as another.
    """
    answer = transport.top_checkpoints(
        experiment_id=experiment_id,
        trial_id=trial_id,
        metric=None if sort_by is None else check_text("sort_by", sort_by),
        smaller_is_better=None if sort_by is None else smaller_is_better,
        limit=limit,
        distinct_trials=experiment_id is not None,
    )
    documents = answer["checkpoints"]
    if not documents or documents[0]["value"] is None:
        owner = f"trial {trial_id}" if experiment_id is None else f"experiment {experiment_id}"
        raise NoCheckpointError(_explain(owner, answer["metric"], documents))
    return [Checkpoint.from_document(found, transport, master=master) for found in documents]


def _explain(owner: str, metric: str, documents: list[Document]) -> str:
    if not documents:
        return (
            f"{owner} has no complete checkpoint.\n"
            "One is saved at the end of training, and before as often as min_checkpoint_period "
            "says. See those that were deleted: detcore checkpoint list --deleted"
        )
    validations = [found["validation"] for found in documents if found["validation"]]
    known = sorted({name for validation in validations for name in validation["metrics"]})
    there = (
        f"Validation metrics there: {', '.join(known)}."
        if known
        else "None of them was validated at its step."
    )
    return (
        f"no checkpoint of {owner} has a number for the validation metric {metric!r}, so none is "
        f"the best.\n{there}\n"
        "Name one of them by sort_by=, or take the latest one: "
        "TrialReference.select_checkpoint(latest=True)"
    )
