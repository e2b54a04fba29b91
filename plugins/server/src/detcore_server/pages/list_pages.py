"""Pages with lists of experiments and models."""

from __future__ import annotations

import dataclasses
import urllib.parse
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request, Response
from pydantic import BaseModel, Field

from detcore.record_descriptions import (
    describe_experiment,
    describe_state,
    get_duration_s,
    metric_value,
)
from detcore.types import ExperimentState
from detcore_server.pages.render import render
from detcore_server.users.authentication import Id, State

_PAGE_SIZE = 50
_ARCHIVED = {"": False, "only": True, "all": None}
_PageNumber = Annotated[int, Field(ge=1, le=10**6)]

router = APIRouter()


class Filters(BaseModel):
    """Filter, order and page number of the experiment list."""

    name: str = ""
    label: str = ""
    user: str = ""
    state: ExperimentState | Literal[""] = ""
    archived: Literal["", "only", "all"] = ""
    sort: Literal["", "oldest", "name"] = ""
    page: _PageNumber = 1


@router.get("/ui/experiments")
def show_experiments(
    request: Request,
    state: State,
    filters: Annotated[Filters, Query()],
) -> Response:
    params = filters.model_dump(mode="json", exclude={"page"})
    which: dict[str, Any] = {
        "states": [filters.state] if filters.state else None,
        "archived": _ARCHIVED[filters.archived],
        "labels": [filters.label] if filters.label else (),
        "name": filters.name,
    }
    database = state.database
    if filters.user:
        which["where"] = database.submitted_by(filters.user)
    paging = Paging(
        filters.page, _PAGE_SIZE, database.count_experiments(**which), _encode_query(params)
    )
    if filters.sort == "name":
        records = database.list_experiments(**which)
        records.sort(key=lambda record: (record.name.casefold(), record.id))
        records = records[paging.offset : paging.offset + _PAGE_SIZE]
    else:
        records = database.list_experiments(
            **which, newest_first=not filters.sort, limit=_PAGE_SIZE, offset=paging.offset
        )
    numbers = database.count_trials()
    users = database.submitters([record.id for record in records])
    rows = []
    for record in records:
        row = describe_experiment(database, record, numbers.get(record.id, 0))
        row["user"] = users.get(record.id)
        row["labels"] = [str(text) for text in record.config.get("labels") or ()]
        row["state_text"] = describe_state(row["state"], is_alive=row["is_alive"])
        row["best"] = metric_value(row, row["metric"])
        row["took"] = get_duration_s(row)
        rows.append(row)
    return render(
        request, "experiments.html",
        rows=rows, paging=paging, params=params, server_url=state.settings.url, is_filtered=any(
            params[key] for key in ("name", "label", "user", "state", "archived")
        ), states=[state.value for state in ExperimentState],
        is_live=True,
    )  # fmt: skip


@router.get("/ui/models")
def show_models(
    request: Request,
    state: State,
    name: str = "",
    label: str = "",
    archived: Literal["", "only", "all"] = "",
    page: Annotated[_PageNumber, Query()] = 1,
) -> Response:
    params = {"name": name, "label": label, "archived": archived}
    records = state.database.list_models(
        name=name, labels=[label] if label else (), archived=_ARCHIVED[archived]
    )
    paging = Paging(page, _PAGE_SIZE, len(records), _encode_query(params))
    return render(
        request, "models.html",
        rows=records[paging.offset : paging.offset + _PAGE_SIZE], paging=paging, params=params,
        is_filtered=any(params.values()),
    )  # fmt: skip


@router.get("/ui/models/{model_id}")
def show_model(request: Request, state: State, model_id: Id) -> Response:
    database = state.database
    model = database.get_model(model_id)
    versions = database.list_versions(model_id)
    checkpoints = {
        version.checkpoint_uuid: database.get_checkpoint(version.checkpoint_uuid)
        for version in versions
    }
    return render(
        request, "model.html", model=model, versions=versions, checkpoints=checkpoints
    )  # fmt: skip


def _encode_query(params: dict[str, str]) -> str:
    return urllib.parse.urlencode({key: value for key, value in params.items() if value})


@dataclasses.dataclass(frozen=True, slots=True)
class Paging:
    """One page of a list.

    Attributes:
        page: Page number, from 1.
        size: Number of entries per page.
        total: Number of all entries.
        query: Encoded URL parameters except the page.
    """

    page: int
    size: int
    total: int
    query: str = ""

    @property
    def offset(self) -> int:
        """Number of entries before this page."""
        return (self.page - 1) * self.size

    @property
    def last(self) -> int:
        """Number of the last page."""
        return max(1, -(-self.total // self.size))

    @property
    def summary(self) -> str:
        """Range of entries on this page, as displayed."""
        if self.offset >= self.total:
            return f"none of {self.total:,}"
        return (
            f"{self.offset + 1:,} to {min(self.offset + self.size, self.total):,} of {self.total:,}"
        )

    def url(self, page: int) -> str:
        """Return the URL of a page of the list."""
        return f"?{self.query}{'&' * bool(self.query)}page={page}"
