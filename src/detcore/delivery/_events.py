"""What observers are told, as records of a trial's spool and as arguments of hooks.

There is no spool of events beside the one of records: what observers are told of metrics is what
was recorded of them, so one write makes both safe, and neither can be without the other.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from detcore._log import SpooledRecord
from detcore.hooks import CheckpointSaved, EventInfo
from detcore.types import TrialInfo

__all__ = [
    "CHECKPOINT",
    "FINISHED",
    "HOOK_OF_KIND",
    "STARTED",
    "arguments_of",
    "encode_checkpoint",
    "encode_end",
]

STARTED = "trial_started"
CHECKPOINT = "checkpoint_saved"
FINISHED = "trial_finished"

HOOK_OF_KIND = {
    STARTED: "detcore_trial_started",
    "training": "detcore_training_metrics",
    "validation": "detcore_validation_metrics",
    CHECKPOINT: "detcore_checkpoint_saved",
    FINISHED: "detcore_trial_finished",
}


def encode_checkpoint(saved: CheckpointSaved) -> dict[str, Any]:
    """Return a checkpoint as a record."""
    return {
        "uuid": saved.uuid,
        "steps_completed": saved.steps_completed,
        "url": saved.url,
        "size_bytes": saved.size_bytes,
        "path": None if saved.path is None else str(saved.path),
        "stalled_s": saved.stalled_s,
        "total_s": saved.total_s,
    }


def encode_end(state: str, error: str | None) -> dict[str, Any]:
    """Return the end of a trial's run as a record."""
    return {"state": state, "error": error}


def arguments_of(
    record: SpooledRecord, trial: TrialInfo, *, is_repeat: bool
) -> Mapping[str, object]:
    """Return what the hook of a record is called with; nothing in it can be changed."""
    event = EventInfo(number=record.seq, time=record.time, is_repeat=is_repeat)
    common: dict[str, object] = {"trial": trial, "event": event}
    payload = record.payload
    if record.kind in ("training", "validation"):
        common["steps_completed"] = payload["steps_completed"]
        common["metrics"] = MappingProxyType(payload["metrics"])
        if record.kind == "training":
            batches = payload.get("batch_metrics")
            common["batch_metrics"] = (
                None if batches is None else tuple(map(MappingProxyType, batches))
            )
    elif record.kind == CHECKPOINT:
        path = payload["path"]
        fields = {**payload, "path": None if path is None else Path(path)}
        common["checkpoint"] = CheckpointSaved(**fields)
    elif record.kind == FINISHED:
        common.update(state=payload["state"], error=payload["error"])
    return common
