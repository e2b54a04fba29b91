"""How an experiment stands when its runner ends."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from detcore.types import ExperimentState

if TYPE_CHECKING:
    from detcore.database import Database

__all__ = ["ExperimentResult", "TrialResult", "read_results"]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TrialResult:
    """How far a trial came.

    Attributes:
        best_validation: The best value of the searcher's metric, or None.
        latest_checkpoint: UUID of the newest checkpoint, or None.
        hparams: Its hyperparameters.
        num_restarts: How often it was started again after a crash.
        error: What went wrong, or None.
    """

    trial_id: int
    state: str
    steps_completed: int
    best_validation: float | None
    latest_checkpoint: str | None
    hparams: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    num_restarts: int = 0
    error: str | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ExperimentResult:
    """How an experiment stands when its runner ends.

    Attributes:
        trials: By their records, oldest first.
        metric: Name of the searcher's metric.
        smaller_is_better: Its direction.
        error: What went wrong, in a line, or None.
        was_cut_short: Whether a second Ctrl-C ended it without a checkpoint.
    """

    experiment_id: int
    state: ExperimentState
    trials: tuple[TrialResult, ...]
    metric: str
    smaller_is_better: bool = True
    error: str | None = None
    was_cut_short: bool = False


def read_results(
    database: Database, experiment_id: int, *, metric: str, smaller_is_better: bool
) -> tuple[TrialResult, ...]:
    """Read how far the trials of an experiment came, by what they have reported."""
    results = []
    for trial in database.list_trials(experiment_id):
        best = database.trial_best_validation(trial.id, metric, smaller_is_better=smaller_is_better)
        latest = database.latest_checkpoint(trial.id)
        steps = database.trial_steps_completed(trial.id)
        results.append(
            TrialResult(
                trial_id=trial.id,
                state=str(trial.state.value),
                steps_completed=max(steps, latest.steps_completed if latest else 0),
                best_validation=best.metrics[metric] if best else None,
                latest_checkpoint=latest.uuid if latest else None,
                hparams=trial.hparams,
                num_restarts=trial.num_restarts,
                error=trial.error,
            )
        )
    return tuple(results)
