"""The hooks. They are called one at a time, by a thread that does nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from detcore import hookimpl

if TYPE_CHECKING:
    from detcore.plugins import CheckpointSaved, EventInfo
    from detcore.types import TrialInfo
    from detcore_mlflow.mirror import Mirror

__all__ = [
    "detcore_checkpoint_saved",
    "detcore_training_metrics",
    "detcore_trial_finished",
    "detcore_trial_started",
    "detcore_validation_metrics",
]


@hookimpl
def detcore_trial_started(trial: TrialInfo, event: EventInfo) -> None:
    """Begin an MLflow run, or go on with it."""
    _mirror_of(trial).start(event)


@hookimpl
def detcore_training_metrics(
    trial: TrialInfo, steps_completed: int, metrics: Mapping[str, float], event: EventInfo
) -> None:
    """Log metrics under their names."""
    _mirror_of(trial).log_metrics(steps_completed, dict(metrics), event)


@hookimpl
def detcore_validation_metrics(
    trial: TrialInfo, steps_completed: int, metrics: Mapping[str, float], event: EventInfo
) -> None:
    """Log metrics under their names, with ``val_`` before those that lack it."""
    named = {
        name if name.startswith("val_") else f"val_{name}": value for name, value in metrics.items()
    }
    _mirror_of(trial).log_metrics(steps_completed, named, event)


@hookimpl
def detcore_checkpoint_saved(
    trial: TrialInfo, checkpoint: CheckpointSaved, event: EventInfo
) -> None:
    """Note where a checkpoint is."""
    _mirror_of(trial).note_checkpoint(checkpoint, event)


@hookimpl
def detcore_trial_finished(
    trial: TrialInfo, state: str, error: str | None, event: EventInfo
) -> None:
    """Set the MLflow run's status."""
    _mirror_of(trial).finish(state, error, event)


def _mirror_of(trial: TrialInfo) -> Mirror:
    # What it needs is imported when there is something to tell.
    from detcore_mlflow.mirror import Mirror

    return Mirror(trial)
