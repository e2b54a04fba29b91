"""Records in the form of the earlier system."""

from __future__ import annotations

import json
import math
import urllib.parse
from collections.abc import Mapping, Sequence
from typing import Any

from detcore.records import (
    CheckpointRecord,
    ExperimentRecord,
    MetricRecord,
    TrialRecord,
    TrialSummary,
)
from detcore.types import Control, ExperimentState, TrialState
from detcore_determined.routes.cluster_routes import PLACE_ID, PLACE_NAME
from detcore_determined.routes.enums import State
from detcore_determined.routes.response_models import Document, moment
from detcore_server.routes import ServerState

_RUNNING = (
    State.ACTIVE, State.STOPPING_COMPLETED, State.STOPPING_CANCELED, State.STOPPING_ERROR,
    State.STOPPING_KILLED, State.QUEUED, State.PULLING, State.STARTING, State.RUNNING,
)  # fmt: skip
# Detcore's states for those of the earlier system; it has no equivalent of the others.
_STATES: Mapping[State, ExperimentState] = {
    **dict.fromkeys(_RUNNING, ExperimentState.RUNNING),
    State.PAUSED: ExperimentState.PAUSED,
    State.COMPLETED: ExperimentState.COMPLETED,
    State.CANCELED: ExperimentState.CANCELED,
    State.ERROR: ExperimentState.ERROR,
}
# The reverse: the earlier system's states for detcore's.
CHECKPOINT_STATES: Mapping[str, str] = {
    "ACTIVE": "STATE_ACTIVE",
    "COMPLETED": "STATE_COMPLETED",
    "DAMAGED": "STATE_ERROR",
    "PARTIALLY_DELETED": "STATE_PARTIALLY_DELETED",
    "DELETING": "STATE_DELETED",
    "DELETED": "STATE_DELETED",
}
_STOPPING = {
    Control.CANCEL: "STATE_STOPPING_CANCELED",
    Control.KILL: "STATE_STOPPING_KILLED",
}
# Retention of checkpoints: the one part of a storage's settings besides its location.
_RETENTION = ("save_experiment_best", "save_trial_best", "save_trial_latest")


def known_states(names: Sequence[State] | None) -> list[ExperimentState] | None:
    """Return detcore's states for those of a filter; None for all."""
    if not names:
        return None
    return sorted({_STATES[name] for name in names if name in _STATES})


def experiment_document(
    record: ExperimentRecord,
    *,
    owner: tuple[int, str],
    num_trials: int,
    is_alive: bool,
    is_queued: bool = False,
) -> Document:
    """Return an experiment.

    Args:
        record: The experiment.
        owner: Id and name of its owner.
        num_trials: Number of its trials.
        is_alive: Whether a process runs it, or a server will run it.
        is_queued: Whether it was submitted and is queued.
    """
    config = record.config
    labels = config.get("labels")
    is_complete = record.state is ExperimentState.COMPLETED
    return {
        "id": record.id,
        "jobId": f"experiment-{record.id}",
        "name": record.name,
        "description": _text(config.get("description")),
        "notes": record.notes,
        "labels": [str(label) for label in labels] if isinstance(labels, list | tuple) else [],
        "state": "STATE_QUEUED" if is_queued else _experiment_state(record, is_alive),
        "archived": record.archived,
        "progress": 1.0 if record.progress is None and is_complete else record.progress,
        "numTrials": num_trials,
        "config": dict(config),
        "originalConfig": record.config_text or json.dumps(dict(config)),
        "searcherType": _text(record.searcher.name),
        "searcherMetric": record.searcher.metric,
        "startTime": moment(record.created_at),
        "endTime": moment(record.ended_at),
        "username": owner[1],
        "userId": owner[0],
        "projectId": PLACE_ID,
        "projectName": PLACE_NAME,
        "projectOwnerId": owner[0],
        "workspaceId": PLACE_ID,
        "workspaceName": PLACE_NAME,
        "resourcePool": "default",
    }


def trial_document(
    record: TrialRecord, summary: TrialSummary | None, *, is_running: bool
) -> Document:
    """Return a trial.

    Args:
        record: The trial.
        summary: The values that lists show.
        is_running: Whether its experiment runs.
    """
    document = {
        "id": record.id,
        "experimentId": record.experiment_id,
        "state": _trial_state(record, is_running),
        "hparams": dict(record.hparams),
        "restarts": record.num_restarts,
        "startTime": moment(record.created_at),
        "endTime": moment(record.ended_at),
        "totalBatchesProcessed": summary.steps_completed if summary is not None else 0,
        "taskId": f"trial-{record.id}",
    }
    if summary is not None and summary.best is not None:
        document["bestValidation"] = metrics_workload(summary.best)
    return document


def metrics_workload(record: MetricRecord, *, with_batches: bool = False) -> Document:
    """Return a report of metrics as a workload of its trial."""
    metrics: Document = {"avgMetrics": dict(record.metrics)}
    if with_batches and record.batch_metrics is not None:
        metrics["batchMetrics"] = [dict(batch) for batch in record.batch_metrics]
    return {
        "metrics": metrics,
        "numInputs": record.n_records or 0,
        "totalBatches": record.steps_completed,
        "endTime": moment(record.reported_at),
    }


def checkpoint_workload(record: CheckpointRecord) -> Document:
    """Return a checkpoint as a workload of its trial."""
    return {
        "uuid": record.uuid,
        "state": CHECKPOINT_STATES[record.state],
        "totalBatches": record.steps_completed,
        "endTime": moment(record.committed_at or record.started_at),
        "metadata": dict(record.metadata),
        "resources": _resources(record),
    }


def checkpoint_documents(state: ServerState, records: Sequence[CheckpointRecord]) -> list[Document]:
    """Return checkpoints with their configurations, hyperparameters and validation metrics."""
    database = state.database
    validations = database.checkpoint_validations([record.uuid for record in records])
    owners = database.get_trials({record.trial_id for record in records})
    experiments = {
        number: database.get_experiment(number)
        for number in {record.experiment_id for record in records}
    }
    return [
        checkpoint_document(
            record,
            experiment=experiments[record.experiment_id],
            hparams=owners[record.trial_id].hparams,
            validation=validations.get(record.uuid),
        )
        for record in records
    ]


def checkpoint_document(
    record: CheckpointRecord,
    *,
    experiment: ExperimentRecord,
    hparams: Mapping[str, Any],
    validation: MetricRecord | None,
) -> Document:
    """Return a checkpoint."""
    metric, config = experiment.searcher.metric, experiment.config
    metrics = _comparable(validation.metrics) if validation is not None else {}
    training: Document = {
        "trialId": record.trial_id,
        "experimentId": record.experiment_id,
        "experimentConfig": {
            **config,
            "checkpoint_storage": storage_document(
                record.storage_url, config.get("checkpoint_storage")
            ),
        },
        "hparams": dict(hparams),
        "validationMetrics": {"avgMetrics": metrics},
    }
    if metric in metrics:
        value = metrics[metric]
        training["searcherMetric"] = value if isinstance(value, int | float) else None
    return {
        "uuid": record.uuid,
        "state": CHECKPOINT_STATES[record.state],
        "taskId": f"trial-{record.trial_id}",
        "reportTime": moment(record.committed_at or record.started_at),
        "metadata": {"steps_completed": record.steps_completed, **record.metadata},
        "resources": _resources(record),
        "training": training,
    }


def storage_document(url: str, spec: object) -> Document:
    """Return the storage of a checkpoint in the client's form, without secrets.

    For a storage that the client does not support, the result is a directory that does not exist,
    so that the client requests the files from the server.

    Args:
        url: URL of the storage.
        spec: ``checkpoint_storage`` of the experiment.
    """
    settings = spec if isinstance(spec, Mapping) else {}
    retention = {name: settings[name] for name in _RETENTION if name in settings}
    parts = urllib.parse.urlsplit(url)
    path = urllib.parse.unquote(parts.path)
    if parts.scheme == "file":
        return {"type": "shared_fs", "host_path": path, **retention}
    bucket: Document = {"bucket": parts.netloc, **retention}
    if path.strip("/"):
        bucket["prefix"] = path.strip("/")
    if parts.scheme == "s3":
        if isinstance(settings.get("endpoint_url"), str):
            bucket["endpoint_url"] = settings["endpoint_url"]
        return {"type": "s3", **bucket}
    if parts.scheme in ("gs", "gcs"):
        return {"type": "gcs", **bucket}
    return {
        "type": "directory",
        "container_path": f"/not-of-this-machine/{parts.scheme}",
        **retention,
    }


def _comparable(metrics: Mapping[str, Any]) -> Document:
    """Return metrics with null for NaN and the infinities.

    The client sorts checkpoints by these values (``top_n_checkpoints``). It cannot compare numbers
    with strings, and puts null last.
    """
    return {
        name: None if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in metrics.items()
    }


def _resources(record: CheckpointRecord) -> Document:
    return {name: str(size) for name, size in record.resources.items()}


def _experiment_state(record: ExperimentRecord, is_alive: bool) -> str:
    if record.state is not ExperimentState.RUNNING:
        return f"STATE_{record.state.value}"
    if not is_alive:
        return "STATE_PAUSED"  # its process has exited, so it can be activated
    return _STOPPING.get(record.control, "STATE_RUNNING") if record.control else "STATE_RUNNING"


def _trial_state(record: TrialRecord, is_running: bool) -> str:
    if record.state is TrialState.RUNNING and not is_running:
        return "STATE_PAUSED"
    if record.state is TrialState.PAUSED and is_running and record.current_run is None:
        return "STATE_QUEUED"
    return f"STATE_{record.state.value}"


def _text(value: object) -> str:
    return "" if value is None else str(value)
