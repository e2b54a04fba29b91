"""Records of checkpoints on their way from a server to a worker."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from typing import Any

from detcore.database import CheckpointRecord
from detcore.remote._numbers import spell_document, unspell_document

__all__ = ["checkpoint_from_document", "checkpoint_to_document"]

_TIMES = ("started_at", "committed_at", "deleted_at")
_PLAIN = ("uuid", "trial_id", "experiment_id", "storage_url", "state", "steps_completed")


def checkpoint_to_document(record: CheckpointRecord) -> dict[str, Any]:
    """Return a checkpoint as JSON values."""
    times = {name: getattr(record, name) for name in _TIMES}
    return {
        **{name: getattr(record, name) for name in _PLAIN},
        **{name: time and time.isoformat() for name, time in times.items()},
        "metadata": spell_document(dict(record.metadata)),
        "resources": dict(record.resources),
    }


def checkpoint_from_document(document: Mapping[str, Any]) -> CheckpointRecord:
    """Return what `checkpoint_to_document` was given."""
    times: dict[str, Any] = {name: document[name] for name in _TIMES}
    plain: dict[str, Any] = {name: document[name] for name in _PLAIN}
    for name, time in times.items():
        plain[name] = None if time is None else datetime.datetime.fromisoformat(time)
    return CheckpointRecord(
        **plain,
        metadata=unspell_document(document["metadata"]),
        resources=document["resources"],
    )
