"""Requests and responses of the client's routes for the OpenAPI document.

Responses are the documents of `detcore.client.Transport`, without validation.
"""

from __future__ import annotations

import json
from types import GenericAlias
from typing import Annotated, Any, Literal, TypeAlias

from fastapi import Depends, Query
from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from detcore.client import DOCUMENTS
from detcore.types import ModelOrderBy, ModelSortBy

MAX_ENTRIES = 1000
MAX_DEPTH = 100

Action: TypeAlias = Literal["activate", "pause", "cancel", "kill", "archive", "unarchive"]
Kind: TypeAlias = Literal["training", "validation"]
SortBy = Annotated[
    ModelSortBy,
    Field(description="0: id, 1: name, 2: description, 4: creation, 5: last change."),
]
OrderBy = Annotated[ModelOrderBy, Field(description="0 and 1: ascending, 2: descending.")]


Limit = Annotated[int, Query(ge=1, le=MAX_ENTRIES, description="Maximum number of entries.")]
Offset = Annotated[int, Query(ge=0, le=2**31 - 1, description="Number of entries to skip.")]


async def _read_page(limit: Limit = MAX_ENTRIES, offset: Offset = 0) -> dict[str, Any]:
    return {"limit": limit, "offset": offset}


# Requested part of a list.
Page = Annotated[dict[str, Any], Depends(_read_page)]


def is_too_deep(value: object) -> bool:
    """Whether a value is nested too deep for a response that contains a list of such values."""
    level = [value]
    for _ in range(MAX_DEPTH + 1):
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
    """Reject NaN and infinities, which Python's JSON parser accepts, and deep nesting."""
    if is_too_deep(value):
        raise ValueError(f"the value is nested more than {MAX_DEPTH} levels deep")
    json.dumps(value, allow_nan=False)
    return value


Metadata = Annotated[
    dict[str, Any],
    AfterValidator(_is_json),
    Field(description="Custom metadata as JSON values by name."),
]


class _Request(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class ControlRequest(_Request):
    """An action on an experiment."""

    action: Action


class TrialControlRequest(_Request):
    """How a trial ends: after saving a checkpoint, or immediately."""

    action: Literal["cancel", "kill"]


class TrialChange(_Request):
    """Changes to a trial. A null field stays unchanged."""

    notes: str | None = None
    labels: list[str] | None = None
    add_labels: list[str] = Field(default_factory=list)
    remove_labels: list[str] = Field(default_factory=list)


class KeysRequest(_Request):
    """Keys to remove. Missing keys are skipped."""

    keys: list[str]


class GlobsRequest(_Request):
    """File patterns as in `pathlib.Path.glob`."""

    globs: list[str]


class ModelRequest(_Request):
    """A new model."""

    # Validated by the registry, whose message the client shows.
    name: Annotated[
        str, Field(json_schema_extra={"minLength": 1, "maxLength": 512, "pattern": r"\S"})
    ]
    description: str = ""
    metadata: Metadata = Field(default_factory=dict)
    labels: list[str] = Field(default_factory=list)


class ModelChange(_Request):
    """Changes to a model. A null field stays unchanged."""

    description: str | None = None
    labels: list[str] | None = None


class VersionRequest(_Request):
    """Checkpoint for the next model version, with a description."""

    checkpoint_uuid: str
    name: str = ""
    comment: str = ""
    notes: str = ""
    metadata: Metadata = Field(default_factory=dict)


def list_of(kind: str) -> Any:
    """Return the response model for a list of documents."""
    return GenericAlias(list, (DOCUMENTS[kind],))
