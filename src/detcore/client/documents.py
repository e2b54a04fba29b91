"""Documents of the client: records as JSON, as a server returns them, and queries.

Times are ISO 8601 strings in UTC. Metrics may be NaN or infinite.
"""

from __future__ import annotations

import datetime
import enum
from collections.abc import Mapping
from typing import Any, TypeAlias

from typing_extensions import TypedDict

from detcore.contract.values import ExperimentState

Document: TypeAlias = "dict[str, Any]"


class ExperimentQuery(TypedDict, total=False):
    """Parameters of a transport's `list_experiments`.

    See the parameters of `detcore.records.Database.list_experiments`.
    """

    states: list[ExperimentState] | None
    labels: list[str]
    name: str
    archived: bool | None
    newest_first: bool
    limit: int | None
    offset: int


class TrialChanges(TypedDict, total=False):
    """Changes of a transport's `update_trial`; see `detcore.records.Database.update_trial`."""

    notes: str | None
    labels: list[str] | None
    add_labels: list[str]
    remove_labels: list[str]


class ModelQuery(TypedDict, total=False):
    """Parameters of a transport's `list_models`.

    ``sort_by`` is a `ModelSortBy`, and ``order_by`` is an `OrderBy`. See also the parameters of
    `Database.list_models`.
    """

    sort_by: int
    order_by: int
    name: str
    description: str
    labels: list[str]
    archived: bool | None
    limit: int | None
    offset: int


class VersionTexts(TypedDict, total=False):
    """Strings and metadata of a new model version. All are empty by default."""

    name: str
    comment: str
    notes: str
    metadata: Document | None


class ExperimentDocument(TypedDict):
    """An experiment. `is_alive` is whether a process runs it, or a server will start it."""

    id: int
    name: str
    state: str
    error: str | None
    config: Document
    archived: bool
    progress: float | None
    created_at: str
    ended_at: str | None
    is_alive: bool


class TrialDocument(TypedDict):
    """A trial."""

    id: int
    experiment_id: int
    state: str
    error: str | None
    hparams: Document
    num_restarts: int
    created_at: str
    ended_at: str | None
    labels: list[str]
    notes: str


class ListedTrialDocument(TrialDocument):
    """A trial in a list, with the best value of the searcher's metric and its latest checkpoint."""

    steps_completed: int
    value: float | None
    value_steps: int | None
    latest_checkpoint: str | None


class ReportDocument(TypedDict):
    """A report of metrics."""

    trial_id: int
    run_id: int
    steps_completed: int
    metrics: Document
    batch_metrics: list[Document] | None
    n_records: int | None
    reported_at: str


class LineDocument(TypedDict):
    """A line that a worker printed, with its time in seconds since 1970."""

    at: float
    run: int
    rank: int
    stream: str
    text: str


class LogDocument(TypedDict):
    """A part of a log. `position` is the start of the next part unless `is_over` is True."""

    lines: list[LineDocument]
    position: int
    is_over: bool


class ValidationDocument(TypedDict):
    """A validation at the step of a checkpoint."""

    metrics: Document
    n_records: int | None


class CheckpointDocument(TypedDict):
    """A checkpoint. `resources` contains file sizes in bytes."""

    uuid: str
    experiment_id: int
    trial_id: int
    state: str
    steps_completed: int
    metadata: Document
    resources: dict[str, int]
    started_at: str
    committed_at: str | None
    experiment_config: Document
    hparams: Document
    validation: ValidationDocument | None


class RankedDocument(CheckpointDocument):
    """A checkpoint with the value that ranks it."""

    value: float | None
    value_steps: int | None


class TopDocument(TypedDict):
    """Checkpoints, the best first."""

    metric: str
    smaller_is_better: bool
    checkpoints: list[RankedDocument]


class FileDocument(TypedDict):
    """A stored file, with its name relative to the checkpoint or the trial's directory."""

    name: str
    size: int


class FilesDocument(TypedDict):
    """The stored files of a checkpoint."""

    uuid: str
    storage_url: str
    files: list[FileDocument]


class ModelDocument(TypedDict):
    """A model."""

    id: int
    name: str
    description: str
    metadata: Document
    labels: list[str]
    archived: bool
    num_versions: int
    created_at: str
    updated_at: str


class VersionDocument(TypedDict):
    """A version of a model."""

    model_id: int
    number: int
    created_at: str
    model_name: str
    checkpoint: CheckpointDocument


DOCUMENTS: Mapping[str, type] = {
    "experiment": ExperimentDocument,
    "trial": TrialDocument,
    "listed": ListedTrialDocument,
    "report": ReportDocument,
    "line": LineDocument,
    "log": LogDocument,
    "validation": ValidationDocument,
    "checkpoint": CheckpointDocument,
    "ranked": RankedDocument,
    "top": TopDocument,
    "file": FileDocument,
    "files": FilesDocument,
    "model": ModelDocument,
    "version": VersionDocument,
}
"""The kinds of documents by name."""


def make_document(kind: str, record: object, **more: object) -> Document:
    """Return the document of a record.

    Args:
        kind: A key of `DOCUMENTS`.
        record: The record.
        more: Fields of the document that the record lacks.
    """
    names = [name for name in DOCUMENTS[kind].__annotations__ if name not in more]
    return {name: _to_json(getattr(record, name)) for name in names} | more


def _to_json(value: object) -> object:
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, datetime.datetime):
        return value.isoformat()
    return value
