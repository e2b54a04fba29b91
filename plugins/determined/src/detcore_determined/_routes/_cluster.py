"""Agents, slots, jobs: detcore has none, and answers with empty lists.

There is one resource pool, the machine of the server: some commands need a pool to query.
"""

from __future__ import annotations

from fastapi import APIRouter, Response

from detcore_determined._routes._answers import Limit, Offset, answer, new_router, page, part
from detcore_server import Requester

_POOL = {
    "name": "default",
    "description": "where the server runs what is handed in",
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


def make_router() -> APIRouter:
    """Return the routes of this part."""
    router = new_router()

    @router.get("/api/v1/tasks")
    def list_tasks(requester: Requester) -> Response:
        """List the tasks that take slots of agents: always empty."""
        return answer({"allocationIdToSummary": {}})

    @router.get("/api/v1/resource-pools")
    def list_pools(requester: Requester, limit: Limit = 0, offset: Offset = 0) -> Response:
        """List the one resource pool."""
        start, end = part(1, limit, offset)
        where = page(1, start, end, limit=limit, offset=offset)
        return answer({"resourcePools": [_POOL][start:end], "pagination": where})

    for path, name in _LISTS:
        _add_empty(router, path, name)
    return router


def _add_empty(router: APIRouter, path: str, name: str) -> None:
    @router.get(path, name=f"list_{name}", operation_id=f"determined_list_{name}")
    def list_none(requester: Requester, limit: Limit = 0, offset: Offset = 0) -> Response:
        """Return an empty list of things that detcore does not have."""
        return answer({name: [], "pagination": page(0, 0, 0, limit=limit, offset=offset)})
