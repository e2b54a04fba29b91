"""Lists of experiments and models."""

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
    """Which experiments are listed, in which order, and which page of the list."""

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
    asked = filters.model_dump(mode="json", exclude={"page"})
    which: dict[str, Any] = {
        "states": [filters.state] if filters.state else None,
        "archived": _ARCHIVED[filters.archived],
        "labels": [filters.label] if filters.label else (),
        "name": filters.name,
    }
    database = state.database
    if filters.user:
        which["where"] = database.submitted_by(filters.user)
    paging = Paging(filters.page, _PAGE_SIZE, database.count_experiments(**which), _query(asked))
    if filters.sort == "name":
        found = database.list_experiments(**which)
        found.sort(key=lambda record: (record.name.casefold(), record.id))
        found = found[paging.offset : paging.offset + _PAGE_SIZE]
    else:
        found = database.list_experiments(
            **which, newest_first=not filters.sort, limit=_PAGE_SIZE, offset=paging.offset
        )
    numbers = database.count_trials()
    users = database.submitters([record.id for record in found])
    rows = []
    for record in found:
        row = describe_experiment(database, record, numbers.get(record.id, 0))
        row["user"] = users.get(record.id)
        row["labels"] = [str(text) for text in record.config.get("labels") or ()]
        row["told"] = describe_state(row["state"], is_alive=row["is_alive"])
        row["best"] = metric_value(row, row["metric"])
        row["took"] = get_duration_s(row)
        rows.append(row)
    return render(
        request, "experiments.html",
        rows=rows, paging=paging, asked=asked, server_url=state.settings.url, is_filtered=any(
            asked[key] for key in ("name", "label", "user", "state", "archived")
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
    asked = {"name": name, "label": label, "archived": archived}
    found = state.database.list_models(
        name=name, labels=[label] if label else (), archived=_ARCHIVED[archived]
    )
    paging = Paging(page, _PAGE_SIZE, len(found), _query(asked))
    return render(
        request, "models.html",
        rows=found[paging.offset : paging.offset + _PAGE_SIZE], paging=paging, asked=asked,
        is_filtered=any(asked.values()),
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


def _query(asked: dict[str, str]) -> str:
    return urllib.parse.urlencode({key: value for key, value in asked.items() if value})


@dataclasses.dataclass(frozen=True, slots=True)
class Paging:
    """A page of a list.

    Attributes:
        page: Its number, from 1.
        size: How many there are on a page.
        total: How many there are.
        query: The other parameters of the address, encoded.
    """

    page: int
    size: int
    total: int
    query: str = ""

    @property
    def offset(self) -> int:
        """How many come before this page."""
        return (self.page - 1) * self.size

    @property
    def last(self) -> int:
        """Number of the last page."""
        return max(1, -(-self.total // self.size))

    @property
    def told(self) -> str:
        """The range of the entries on this page, as text."""
        if self.offset >= self.total:
            return f"none of {self.total:,}"
        return (
            f"{self.offset + 1:,} to {min(self.offset + self.size, self.total):,} of {self.total:,}"
        )

    def url(self, page: int) -> str:
        """Return the address of another page of the list."""
        return f"?{self.query}{'&' * bool(self.query)}page={page}"
