"""Telling the runner and the plugins what happened, once it is safely recorded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from detcore.core._events import EventPipe
    from detcore.core._outcome import Outcome
    from detcore.hooks import CheckpointSaved, PluginManager
    from detcore.types import TrialInfo

__all__ = ["Observers"]


class Observers:
    """Everybody who is told of a trial's metrics, checkpoints and end."""

    def __init__(self, info: TrialInfo, events: EventPipe, plugins: PluginManager) -> None:
        self._info = info
        self._events = events
        self._plugins = plugins

    def started(self) -> None:
        """Tell that the trial starts."""
        self._plugins.notify_trial_started(self._info)

    def metrics(
        self,
        kind: str,
        steps_completed: int,
        metrics: Mapping[str, float],
        batch_metrics: Sequence[Mapping[str, float]] | None,
    ) -> None:
        """Tell of training or validation metrics."""
        self._events.send(kind, steps_completed=steps_completed, metrics=dict(metrics))
        if kind == "training":
            self._plugins.notify_training_metrics(
                self._info, steps_completed, metrics, batch_metrics
            )
        else:
            self._plugins.notify_validation_metrics(self._info, steps_completed, metrics)

    def checkpoint_saved(self, saved: CheckpointSaved) -> None:
        """Tell of a checkpoint."""
        self._events.send(
            "checkpoint",
            uuid=saved.uuid,
            steps_completed=saved.steps_completed,
            url=saved.url,
            size_bytes=saved.size_bytes,
            stalled_s=saved.stalled_s,
            total_s=saved.total_s,
        )
        self._plugins.notify_checkpoint_saved(self._info, saved)

    def ending(self, outcome: Outcome) -> None:
        """Tell the runner how the trial ends, unless the layer above did so already."""
        if not self._events.has_sent("finished"):
            self._events.send("finished", state=outcome.label, error=outcome.error)

    def finished(self, outcome: Outcome) -> None:
        """Tell the plugins that the trial ended; everything is recorded by then."""
        self._plugins.notify_trial_finished(self._info, outcome.label, outcome.error)
