"""The events of a trial's log as arguments of observer hooks."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from detcore._log import SpooledRecord
from detcore._log.events import (
    CheckpointCommitted,
    TrainingMetrics,
    TrialFinished,
    TrialStarted,
    ValidationMetrics,
)
from detcore._log.events import (
    CheckpointSaved as SavedEvent,
)
from detcore.hooks import CheckpointSaved, EventInfo
from detcore.types import TrialInfo

__all__ = ["arguments_of", "hook_of", "saved_event"]

_HOOK_OF_KIND = {
    TrialStarted.KIND: "detcore_trial_started",
    TrainingMetrics.KIND: "detcore_training_metrics",
    ValidationMetrics.KIND: "detcore_validation_metrics",
    CheckpointCommitted.KIND: "detcore_checkpoint_saved",
    SavedEvent.KIND: "detcore_checkpoint_saved",
    TrialFinished.KIND: "detcore_trial_finished",
}


def hook_of(record: SpooledRecord) -> str | None:
    """Return the hook that a record of a log is for, or None."""
    if record.kind == CheckpointCommitted.KIND and not record.payload.get("url"):
        return None  # of the first release, which told observers by a line of its own
    return _HOOK_OF_KIND.get(record.kind)


def saved_event(saved: CheckpointSaved) -> SavedEvent:
    """Return the event of a checkpoint that was found whole after its process was killed."""
    return SavedEvent(
        uuid=saved.uuid,
        steps_completed=saved.steps_completed,
        url=saved.url,
        path=None if saved.path is None else str(saved.path),
        size_bytes=saved.size_bytes,
        stalled_s=saved.stalled_s,
        total_s=saved.total_s,
    )


def arguments_of(
    record: SpooledRecord, trial: TrialInfo, *, is_repeat: bool
) -> Mapping[str, object]:
    """Return what the hook of a record is called with; nothing in it can be changed."""
    event = EventInfo(number=record.seq, time=record.time, is_repeat=is_repeat)
    common: dict[str, object] = {"trial": trial, "event": event}
    payload = record.payload
    if record.kind in (TrainingMetrics.KIND, ValidationMetrics.KIND):
        common["steps_completed"] = payload["steps_completed"]
        common["metrics"] = MappingProxyType(payload["metrics"])
        if record.kind == TrainingMetrics.KIND:
            batches = payload.get("batch_metrics")
            common["batch_metrics"] = (
                None if batches is None else tuple(map(MappingProxyType, batches))
            )
    elif record.kind in (CheckpointCommitted.KIND, SavedEvent.KIND):
        path = payload["path"]
        common["checkpoint"] = CheckpointSaved(
            uuid=payload["uuid"],
            steps_completed=payload["steps_completed"],
            url=payload["url"],
            size_bytes=payload["size_bytes"],
            path=None if path is None else Path(path),
            stalled_s=payload["stalled_s"],
            total_s=payload["total_s"],
        )
    elif record.kind == TrialFinished.KIND:
        common.update(state=payload["state"], error=payload["error"])
    return common
