"""The one workspace and its one project, which clients request although detcore has neither."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Response

from detcore.types import ExperimentState
from detcore_determined._routes._answers import (
    Document,
    Limit,
    Offset,
    Text,
    answer,
    new_router,
    page,
    part,
    refuse,
)
from detcore_server import Requester
from detcore_server.routes import Id, ServerState, State

PLACE_ID = 1
PLACE_NAME = "Uncategorized"
_STATE = "WORKSPACE_STATE_UNSPECIFIED"


def make_router() -> APIRouter:
    """Return the routes of this part."""
    router = new_router()

    @router.get("/api/v1/workspaces")
    def list_workspaces(
        state: State,
        requester: Requester,
        name: Text = "",
        name_case_sensitive: Annotated[Text, Query(alias="nameCaseSensitive")] = "",
        limit: Limit = 0,
        offset: Offset = 0,
    ) -> Response:
        """List the one workspace."""
        is_it = name.casefold() in PLACE_NAME.casefold() and name_case_sensitive in ("", PLACE_NAME)
        found = [_workspace(state, requester)] if is_it else []
        return _page("workspaces", found, limit, offset)

    @router.get("/api/v1/workspaces/{workspace_id}")
    def get_workspace(state: State, requester: Requester, workspace_id: Id) -> Response:
        """Return the one workspace."""
        _require("workspace", workspace_id)
        return answer({"workspace": _workspace(state, requester)})

    @router.get("/api/v1/workspaces/{workspace_id}/projects")
    def list_projects(
        state: State,
        requester: Requester,
        workspace_id: Id,
        name: Text = "",
        limit: Limit = 0,
        offset: Offset = 0,
    ) -> Response:
        """List the one project."""
        _require("workspace", workspace_id)
        is_it = name.casefold() in PLACE_NAME.casefold()
        return _page("projects", [_project(state, requester)] if is_it else [], limit, offset)

    @router.get("/api/v1/workspaces/{workspace_id}/available-resource-pools")
    def list_pools(
        requester: Requester, workspace_id: Id, limit: Limit = 0, offset: Offset = 0
    ) -> Response:
        """List the resource pools of a workspace: always empty."""
        _require("workspace", workspace_id)
        return _page("resourcePools", [], limit, offset)

    @router.get("/api/v1/projects/{project_id}")
    def get_project(state: State, requester: Requester, project_id: Id) -> Response:
        """Return the one project."""
        _require("project", project_id)
        return answer({"project": _project(state, requester)})

    return router


def _require(what: str, number: int) -> None:
    if number != PLACE_ID:
        raise refuse(404, f"no {what} {number}: detcore has one, {PLACE_ID} ({PLACE_NAME})")


def _page(name: str, found: list[Document], limit: int, offset: int) -> Response:
    start, end = part(len(found), limit, offset)
    where = page(len(found), start, end, limit=limit, offset=offset)
    return answer({name: found[start:end], "pagination": where})


def _workspace(state: ServerState, requester: Requester) -> Document:
    return {
        "id": PLACE_ID,
        "name": PLACE_NAME,
        "archived": False,
        "errorMessage": "",
        "immutable": True,
        "numExperiments": state.database.count_experiments(),
        "numProjects": 1,
        "pinned": False,
        "state": _STATE,
        "userId": requester.user_id,
        "username": requester.user_name,
    }


def _project(state: ServerState, requester: Requester) -> Document:
    total = state.database.count_experiments()
    return {
        "id": PLACE_ID,
        "name": PLACE_NAME,
        "key": PLACE_NAME,
        "description": "",
        "notes": [],
        "archived": False,
        "errorMessage": "",
        "immutable": True,
        "numExperiments": total,
        "numActiveExperiments": state.database.count_experiments(states=[ExperimentState.RUNNING]),
        "numRuns": total,
        "state": _STATE,
        "userId": requester.user_id,
        "username": requester.user_name,
        "workspaceId": PLACE_ID,
        "workspaceName": PLACE_NAME,
    }
