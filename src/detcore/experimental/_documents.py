"""From records of the database to documents of `Transport`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import datetime

    from detcore.database import (
        CheckpointRecord,
        ExperimentRecord,
        LogLine,
        MetricRecord,
        ModelRecord,
        TrialRecord,
    )
    from detcore.experimental._transport import Document

__all__ = [
    "checkpoint_document",
    "experiment_document",
    "line_document",
    "model_document",
    "report_document",
    "trial_document",
]


def experiment_document(record: ExperimentRecord, is_alive: bool | None) -> Document:
    """Return an experiment."""
    return {
        "id": record.id,
        "name": record.name,
        "state": record.state.value,
        "error": record.error,
        "config": dict(record.config),
        "archived": record.archived,
        "progress": record.progress,
        "created_at": _text(record.created_at),
        "ended_at": _text(record.ended_at),
        "is_alive": is_alive,
    }


def trial_document(record: TrialRecord) -> Document:
    """Return a trial."""
    return {
        "id": record.id,
        "experiment_id": record.experiment_id,
        "state": record.state.value,
        "error": record.error,
        "hparams": dict(record.hparams),
        "num_restarts": record.num_restarts,
        "created_at": _text(record.created_at),
        "ended_at": _text(record.ended_at),
    }


def report_document(record: MetricRecord) -> Document:
    """Return a report of metrics."""
    batches = record.batch_metrics
    return {
        "trial_id": record.trial_id,
        "run_id": record.run_id,
        "steps_completed": record.steps_completed,
        "metrics": dict(record.metrics),
        "batch_metrics": None if batches is None else [dict(batch) for batch in batches],
        "n_records": record.n_records,
        "reported_at": _text(record.reported_at),
    }


def checkpoint_document(
    record: CheckpointRecord, *, config: str, hparams: str, validation: MetricRecord | None
) -> Document:
    """Return a checkpoint.

    Args:
        record: The checkpoint.
        config: The experiment's configuration, as JSON text: each document gets its own copy.
        hparams: The trial's hyperparameters, as JSON text.
        validation: The validation at its step, or None.
    """
    return {
        "uuid": record.uuid,
        "experiment_id": record.experiment_id,
        "trial_id": record.trial_id,
        "state": record.state,
        "steps_completed": record.steps_completed,
        "metadata": dict(record.metadata),
        "resources": dict(record.resources),
        "experiment_config": json.loads(config),
        "hparams": json.loads(hparams),
        "started_at": _text(record.started_at),
        "committed_at": _text(record.committed_at),
        "validation": None
        if validation is None
        else {"metrics": dict(validation.metrics), "n_records": validation.n_records},
    }


def model_document(record: ModelRecord) -> Document:
    """Return a model."""
    return {
        "id": record.id,
        "name": record.name,
        "description": record.description,
        "metadata": dict(record.metadata),
        "labels": list(record.labels),
        "archived": record.archived,
        "num_versions": record.num_versions,
        "created_at": _text(record.created_at),
        "updated_at": _text(record.updated_at),
    }


def line_document(line: LogLine) -> Document:
    """Return a line of a log."""
    fields: Mapping[str, Any] = {name: getattr(line, name) for name in line.__slots__}
    return dict(fields)


def _text(moment: datetime.datetime | None) -> str | None:
    return None if moment is None else moment.isoformat()
