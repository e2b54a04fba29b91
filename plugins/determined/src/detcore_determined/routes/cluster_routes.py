"""Cluster resources that clients request although detcore has no cluster.

One workspace with one project and one resource pool (the server's machine) exist, because some
commands query them. Lists of agents, slots and jobs are empty.
"""

from __future__ import annotations

from fastapi import Response

from detcore.types import ExperimentState
from detcore_determined.routes.response_models import (
    Document,
    Part,
    Text,
    answer,
    answer_page,
    new_router,
    refuse,
)
from detcore_server import Requester
from detcore_server.routes import Id, ServerState, State

PLACE_ID = 1
PLACE_NAME = "Uncategorized"
_STATE = "WORKSPACE_STATE_UNSPECIFIED"
_POOL = {
    "name": "default",
    "description": "where the server runs submitted experiments",
    "type": "RESOURCE_POOL_TYPE_STATIC",
    "schedulerType": "SCHEDULER_TYPE_FAIR_SHARE",
    "schedulerFittingPolicy": "FITTING_POLICY_BEST",
    "slotType": "TYPE_UNSPECIFIED",
    "defaultAuxPool": True,
    "defaultComputePool": True,
    "preemptible": False,
    "details": {},
    "resourceManagerMetadata": {},
    **dict.fromkeys(
        (
            "agentDockerImage", "agentDockerNetwork", "agentDockerRuntime", "agentFluentImage",
            "clusterName", "containerStartupScript", "imageId", "instanceType", "location",
            "masterCertName", "masterUrl", "startupScript",
        ),
        "",
    ),
    **dict.fromkeys(
        (
            "auxContainerCapacity", "auxContainerCapacityPerAgent", "auxContainersRunning",
            "maxAgentStartingPeriod", "maxAgents", "maxIdleAgentPeriod", "minAgents", "numAgents",
            "slotsAvailable", "slotsUsed",
        ),
        0,
    ),
}  # fmt: skip
_LISTS = (
    ("/api/v1/agents", "agents"),
    ("/api/v1/job-queues-v2", "jobs"),
    ("/api/v1/templates", "templates"),
    ("/api/v1/notebooks", "notebooks"),
    ("/api/v1/commands", "commands"),
    ("/api/v1/shells", "shells"),
    ("/api/v1/tensorboards", "tensorboards"),
)

router = new_router()


@router.get("/api/v1/workspaces")
def list_workspaces(
    state: State,
    requester: Requester,
    part: Part,
    name: Text = "",
) -> Response:
    """List the one workspace."""
    workspaces = [_workspace(state, requester)] if _is_named(name) else []
    return answer_page("workspaces", workspaces, list, part)


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
    part: Part,
    name: Text = "",
) -> Response:
    """List the one project."""
    _require("workspace", workspace_id)
    projects = [_project(state, requester)] if _is_named(name) else []
    return answer_page("projects", projects, list, part)


@router.get("/api/v1/workspaces/{workspace_id}/available-resource-pools")
def list_workspace_pools(requester: Requester, workspace_id: Id, part: Part) -> Response:
    """List the resource pools of a workspace: always empty."""
    _require("workspace", workspace_id)
    return answer_page("resourcePools", [], list, part)


@router.get("/api/v1/projects/{project_id}")
def get_project(state: State, requester: Requester, project_id: Id) -> Response:
    """Return the one project."""
    _require("project", project_id)
    return answer({"project": _project(state, requester)})


@router.get("/api/v1/resource-pools")
def list_pools(requester: Requester, part: Part) -> Response:
    """List the one resource pool."""
    return answer_page("resourcePools", [_POOL], list, part)


@router.get("/api/v1/tasks")
def list_tasks(requester: Requester) -> Response:
    """List the tasks that take slots of agents: always empty."""
    return answer({"allocationIdToSummary": {}})


def _add_empty(path: str, name: str) -> None:
    @router.get(path, name=f"list_{name}", operation_id=f"determined_list_{name}")
    def list_none(requester: Requester, part: Part) -> Response:
        """Return an empty list of things that detcore does not have."""
        return answer_page(name, [], list, part)


for path, key in _LISTS:
    _add_empty(path, key)


def _is_named(name: str) -> bool:
    return name.casefold() in PLACE_NAME.casefold()


def _require(kind: str, number: int) -> None:
    if number != PLACE_ID:
        raise refuse(404, f"no {kind} {number}: detcore has one, {PLACE_ID} ({PLACE_NAME})")


def _make_place(state: ServerState, requester: Requester) -> Document:
    """Return the fields that the workspace and the project share."""
    return {
        "id": PLACE_ID,
        "name": PLACE_NAME,
        "archived": False,
        "errorMessage": "",
        "immutable": True,
        "numExperiments": state.database.count_experiments(),
        "state": _STATE,
        "userId": requester.user_id,
        "username": requester.user_name,
    }


def _workspace(state: ServerState, requester: Requester) -> Document:
    return {**_make_place(state, requester), "numProjects": 1, "pinned": False}


def _project(state: ServerState, requester: Requester) -> Document:
    place = _make_place(state, requester)
    return {
        **place,
        "key": PLACE_NAME,
        "description": "",
        "notes": [],
        "numActiveExperiments": state.database.count_experiments(states=[ExperimentState.RUNNING]),
        "numRuns": place["numExperiments"],
        "workspaceId": PLACE_ID,
        "workspaceName": PLACE_NAME,
    }
