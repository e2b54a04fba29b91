"""Results of an experiment and its trials."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from detcore.contract.values import ExperimentState

if TYPE_CHECKING:
    from detcore.records import Database


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TrialResult:
    """Progress and result of a trial.

    Attributes:
        best_validation: Best value of the searcher's metric, or None.
        best_steps: Batch at which the best value was reached, or None.
        latest_checkpoint: UUID of the newest checkpoint, or None.
        hparams: Its hyperparameters.
        num_restarts: Number of restarts after crashes.
        error: The error, or None.
    """

    trial_id: int
    state: str
    steps_completed: int
    best_validation: float | None
    latest_checkpoint: str | None
    best_steps: int | None = None
    hparams: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    num_restarts: int = 0
    error: str | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ExperimentResult:
    """State of an experiment when its runner ends.

    Attributes:
        trials: Results of its trials, oldest first.
        metric: Name of the searcher's metric.
        smaller_is_better: Whether smaller values of the metric are better.
        error: The error in one line, or None.
        reported_metrics: Names of the metrics that validations reported.
        was_killed: Whether a second Ctrl-C ended it without a checkpoint.
    """

    experiment_id: int
    state: ExperimentState
    trials: tuple[TrialResult, ...]
    metric: str
    smaller_is_better: bool = True
    error: str | None = None
    reported_metrics: tuple[str, ...] = ()
    was_killed: bool = False

    @property
    def ranked(self) -> list[TrialResult]:
        """The trials, best first. Trials without a validation are last, in order of their ids."""
        sign = 1 if self.smaller_is_better else -1

        def key(trial: TrialResult) -> tuple[bool, float, int]:
            value = trial.best_validation
            return value is None, sign * (value or 0.0), trial.trial_id

        return sorted(self.trials, key=key)


def read_results(
    database: Database, experiment_id: int, *, metric: str, smaller_is_better: bool
) -> tuple[TrialResult, ...]:
    """Read the progress and results of an experiment's trials from their reports."""
    trials = database.list_trials(experiment_id)
    summaries = database.summarize_trials(
        experiment_id, metric=metric, smaller_is_better=smaller_is_better
    )
    results = []
    for trial in trials:
        summary = summaries[trial.id]
        results.append(
            TrialResult(
                trial_id=trial.id,
                state=str(trial.state.value),
                steps_completed=max(summary.steps_completed, summary.steps_saved),
                best_validation=summary.best.metrics[metric] if summary.best else None,
                latest_checkpoint=summary.latest_checkpoint,
                best_steps=summary.best.steps_completed if summary.best else None,
                hparams=trial.hparams,
                num_restarts=trial.num_restarts,
                error=trial.error,
            )
        )
    return tuple(results)
