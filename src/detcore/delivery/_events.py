"""The events of a trial's log as arguments of observer hooks."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from detcore._log import SpooledRecord, events
from detcore.hooks import CheckpointSaved, EventInfo
from detcore.types import TrialInfo

__all__ = ["arguments_of", "hook_of", "saved_event"]

_HOOKS: dict[type[events.Event], str] = {
    events.TrialStarted: "detcore_trial_started",
    events.TrainingMetrics: "detcore_training_metrics",
    events.ValidationMetrics: "detcore_validation_metrics",
    events.CheckpointCommitted: "detcore_checkpoint_saved",
    events.CheckpointSaved: "detcore_checkpoint_saved",
    events.TrialFinished: "detcore_trial_finished",
}


def hook_of(event: events.Event | None) -> str | None:
    """Return the hook that an event of a log is for, or None."""
    if event is None or (isinstance(event, events.CheckpointCommitted) and not event.url):
        return None  # in the first release, observers got checkpoints by a separate line
    return _HOOKS.get(type(event))


def saved_event(saved: CheckpointSaved) -> events.CheckpointSaved:
    """Return the event of a checkpoint that was found whole after its process was killed."""
    return events.CheckpointSaved(
        uuid=saved.uuid,
        steps_completed=saved.steps_completed,
        url=saved.url,
        path=None if saved.path is None else str(saved.path),
        size_bytes=saved.size_bytes,
        stalled_s=saved.stalled_s,
        total_s=saved.total_s,
    )


def arguments_of(
    record: SpooledRecord, event: events.Event, trial: TrialInfo, *, is_repeat: bool
) -> Mapping[str, object]:
    """Return the arguments for the hook of a record's event; nothing in them can be changed."""
    info = EventInfo(number=record.seq, time=record.time, is_repeat=is_repeat)
    common: dict[str, object] = {"trial": trial, "event": info}
    if isinstance(event, events.TrainingMetrics | events.ValidationMetrics):
        common["steps_completed"] = event.steps_completed
        common["metrics"] = MappingProxyType(event.metrics)
        if isinstance(event, events.TrainingMetrics):
            batches = event.batch_metrics
            common["batch_metrics"] = (
                None if batches is None else tuple(map(MappingProxyType, batches))
            )
    elif isinstance(event, events.CheckpointCommitted | events.CheckpointSaved):
        common["checkpoint"] = CheckpointSaved(
            uuid=event.uuid,
            steps_completed=event.steps_completed,
            url=event.url or "",  # `hook_of` has seen that it is there
            size_bytes=event.size_bytes,
            path=None if event.path is None else Path(event.path),
            stalled_s=event.stalled_s,
            total_s=event.total_s,
        )
    elif isinstance(event, events.TrialFinished):
        common.update(state=event.state, error=event.error)
    return common
