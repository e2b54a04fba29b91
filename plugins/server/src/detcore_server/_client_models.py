"""Requests and answers of the client's routes, as the OpenAPI document describes them.

Answers are written from the documents of `detcore.experimental.Transport` as they are; these
classes describe them, and a test compares the two.
"""

from __future__ import annotations

import datetime
import math
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from detcore.types import ModelOrderBy, ModelSortBy

__all__ = [
    "MOST_DEPTH",
    "MOST_ENTRIES",
    "CheckpointAnswer",
    "ControlRequest",
    "ExperimentAnswer",
    "FileAnswer",
    "FilesAnswer",
    "GlobsRequest",
    "KeysRequest",
    "Kind",
    "LogAnswer",
    "Metadata",
    "ModelAnswer",
    "ModelChange",
    "ModelRequest",
    "OrderBy",
    "ReportAnswer",
    "SortBy",
    "TopAnswer",
    "TrialAnswer",
    "TrialControlRequest",
    "VersionAnswer",
    "VersionRequest",
    "is_too_deep",
]

MOST_ENTRIES = 1000
MOST_DEPTH = 100

Kind: TypeAlias = Literal["training", "validation"]
Metric: TypeAlias = float | Literal["NaN", "Infinity", "-Infinity"]
Metrics = Annotated[
    dict[str, Metric],
    Field(description="Numbers by name; those that JSON does not have are texts."),
]
Document = Annotated[
    dict[str, Any],
    Field(
        description='JSON. NaN is {"$number": "NaN"} in it, and likewise "Infinity" and '
        '"-Infinity"; an object whose only key is "$number" otherwise has its value once more in '
        "such an object."
    ),
]
SortBy = Annotated[
    ModelSortBy,
    Field(description="0: id, 1: name, 2: description, 4: creation, 5: last change."),
]
OrderBy = Annotated[ModelOrderBy, Field(description="0 and 1: ascending, 2: descending.")]


def is_too_deep(value: object) -> bool:
    """Return whether a value is nested too deep for an answer with a list of such values."""
    level = [value]
    for _ in range(MOST_DEPTH + 1):
        level = [
            inner
            for item in level
            if isinstance(item, dict | list)
            for inner in (item.values() if isinstance(item, dict) else item)
        ]
        if not level:
            return False
    return True


def _is_json(value: dict[str, Any]) -> dict[str, Any]:
    """Refuse numbers that JSON does not have, which Python's parser takes, and endless nesting."""
    if is_too_deep(value):
        raise ValueError(f"it is nested more than {MOST_DEPTH} times")
    todo: list[Any] = [value]
    while todo:
        found = todo.pop()
        if isinstance(found, float) and not math.isfinite(found):
            raise ValueError(f"{found} is not JSON")
        if isinstance(found, dict):
            todo.extend(found.values())
        elif isinstance(found, list):
            todo.extend(found)
    return value


Metadata = Annotated[
    dict[str, Any],
    AfterValidator(_is_json),
    Field(description="The user's own, by name; JSON values."),
]


class _Request(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class ControlRequest(_Request):
    """An action on an experiment."""

    action: Literal["activate", "pause", "cancel", "kill", "archive", "unarchive"]


class TrialControlRequest(_Request):
    """The way to end a trial: with a checkpoint, or at once."""

    action: Literal["cancel", "kill"]


class KeysRequest(_Request):
    """Keys to remove; missing ones are skipped."""

    keys: list[str]


class GlobsRequest(_Request):
    """Patterns of files, as of `pathlib.Path.glob`."""

    globs: list[str]


class ModelRequest(_Request):
    """A new model."""

    # Not checked here but by the registry, whose message the client shows.
    name: Annotated[
        str, Field(json_schema_extra={"minLength": 1, "maxLength": 512, "pattern": r"\S"})
    ]
    description: str = ""
    metadata: Metadata = Field(default_factory=dict)
    labels: list[str] = Field(default_factory=list)


class ModelChange(_Request):
    """Changes to a model; a field that is null stays as it is."""

    description: str | None = None
    labels: list[str] | None = None


class VersionRequest(_Request):
    """The checkpoint that becomes the next version of a model, and a description of it."""

    checkpoint_uuid: str
    name: str = ""
    comment: str = ""
    notes: str = ""
    metadata: Metadata = Field(default_factory=dict)


class ExperimentAnswer(BaseModel):
    """An experiment."""

    id: int
    name: str
    state: str
    error: str | None
    config: Document
    archived: bool
    progress: float | None
    created_at: datetime.datetime
    ended_at: datetime.datetime | None
    is_alive: bool | None = Field(description="Whether its process is there; null: unknown.")


class TrialAnswer(BaseModel):
    """A trial."""

    id: int
    experiment_id: int
    state: str
    error: str | None
    hparams: Document
    num_restarts: int
    created_at: datetime.datetime
    ended_at: datetime.datetime | None


class ReportAnswer(BaseModel):
    """A report of metrics."""

    trial_id: int
    run_id: int
    steps_completed: int
    metrics: Metrics
    batch_metrics: list[Metrics] | None
    n_records: int | None
    reported_at: datetime.datetime


class LineAnswer(BaseModel):
    """A line that a worker printed."""

    at: float = Field(description="When, in seconds since 1970.")
    run: int
    rank: int
    stream: str
    text: str


class LogAnswer(BaseModel):
    """A part of a log."""

    lines: list[LineAnswer]
    position: int = Field(description="Where the next part begins.")
    is_over: bool = Field(description="Whether nothing more will come.")


class ValidationAnswer(BaseModel):
    """A validation at the step of a checkpoint."""

    metrics: Metrics
    n_records: int | None


class CheckpointAnswer(BaseModel):
    """A checkpoint."""

    uuid: str
    experiment_id: int
    trial_id: int
    state: str
    steps_completed: int
    metadata: Document
    resources: dict[str, int] = Field(description="Sizes of its files in bytes.")
    experiment_config: Document
    hparams: Document
    started_at: datetime.datetime
    committed_at: datetime.datetime | None
    validation: ValidationAnswer | None


class RankedAnswer(CheckpointAnswer):
    """A checkpoint, with the value it is ranked by."""

    value: Metric | None


class TopAnswer(BaseModel):
    """Checkpoints, the best first."""

    metric: str
    smaller_is_better: bool
    checkpoints: list[RankedAnswer]


class FileAnswer(BaseModel):
    """A stored file."""

    name: str = Field(description="Below the checkpoint, or below the trial's folder.")
    size: int


class FilesAnswer(BaseModel):
    """The stored files of a checkpoint."""

    uuid: str
    storage_url: str
    files: list[FileAnswer]


class ModelAnswer(BaseModel):
    """A model."""

    id: int
    name: str
    description: str
    metadata: Document
    labels: list[str]
    archived: bool
    num_versions: int
    created_at: datetime.datetime
    updated_at: datetime.datetime


class VersionAnswer(BaseModel):
    """A version of a model."""

    model_id: int
    model_name: str
    number: int
    checkpoint: CheckpointAnswer
    created_at: datetime.datetime
