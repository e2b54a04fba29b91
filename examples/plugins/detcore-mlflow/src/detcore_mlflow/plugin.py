"""Hook implementations, which detcore calls one at a time in a separate thread."""

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
    """Start or continue an MLflow run."""
    _make_mirror(trial).start(event)


@hookimpl
def detcore_training_metrics(
    trial: TrialInfo, steps_completed: int, metrics: Mapping[str, float], event: EventInfo
) -> None:
    """Log metrics under their names."""
    _make_mirror(trial).log_metrics(steps_completed, dict(metrics), event)


@hookimpl
def detcore_validation_metrics(
    trial: TrialInfo, steps_completed: int, metrics: Mapping[str, float], event: EventInfo
) -> None:
    """Log metrics under their names with the prefix ``val_``."""
    val_metrics = {
        name if name.startswith("val_") else f"val_{name}": value for name, value in metrics.items()
    }
    _make_mirror(trial).log_metrics(steps_completed, val_metrics, event)


@hookimpl
def detcore_checkpoint_saved(
    trial: TrialInfo, checkpoint: CheckpointSaved, event: EventInfo
) -> None:
    """Record the location of a checkpoint."""
    _make_mirror(trial).record_checkpoint(checkpoint, event)


@hookimpl
def detcore_trial_finished(
    trial: TrialInfo, state: str, error: str | None, event: EventInfo
) -> None:
    """Set the MLflow run's status."""
    _make_mirror(trial).finish(state, error, event)


def _make_mirror(trial: TrialInfo) -> Mirror:
    # Imported on the first event, to keep discovery fast.
    from detcore_mlflow.mirror import Mirror

    return Mirror(trial)
