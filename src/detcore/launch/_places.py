"""The places of ranks on one machine or several, and the variables that they start from."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from detcore.contract.launch import RankPlace
from detcore.distributed import launcher_variables

# Left over from an outer job, they would send a worker to the wrong one.
_OUTER_JOB = frozenset(
    {
        "DETCORE_CHIEF_PORT",
        "HOROVOD_CONTROLLER",
        "HOROVOD_ELASTIC",
        "HOROVOD_GLOO_RENDEZVOUS_ADDR",
        "HOROVOD_GLOO_RENDEZVOUS_PORT",
        "HOROVOD_HOSTNAME",
        "MASTER_PORT",
        "TORCHELASTIC_RUN_ID",
        "TORCHELASTIC_USE_AGENT_STORE",
    }
)


def place_ranks(nodes: Sequence[str]) -> list[RankPlace]:
    """Number the workers of a job.

    Args:
        nodes: The node of each worker, by rank.

    Returns:
        Their places, by rank. Nodes count in the order of their first ranks.
    """
    names = list(dict.fromkeys(nodes))
    local_ranks = [list(nodes[:rank]).count(node) for rank, node in enumerate(nodes)]
    return [
        RankPlace(
            rank=rank,
            size=len(nodes),
            local_rank=local_ranks[rank],
            local_size=list(nodes).count(node),
            cross_rank=names.index(node),
            cross_size=len(names),
            column_rank=local_ranks[:rank].count(local_ranks[rank]),
            column_size=local_ranks.count(local_ranks[rank]),
        )
        for rank, node in enumerate(nodes)
    ]


def without_outer_job(
    variables: Mapping[str, str], place: RankPlace, *, num_cores: int | None = None
) -> dict[str, str]:
    """Return variables for a worker, without those that would send it to the surrounding job.

    Args:
        variables: Such as those of this process.
        place: Which worker.
        num_cores: How many cores the worker has for itself. Default: its share of the machine's.
    """
    defaults = default_settings(place.local_size)
    if num_cores is not None:
        defaults.update(OMP_NUM_THREADS=str(num_cores), TF_NUM_INTRAOP_THREADS=str(num_cores))
    left_out = outer_variables()
    kept = {name: value for name, value in variables.items() if name not in left_out}
    return {**defaults, **kept}


def outer_variables() -> frozenset[str]:
    """Return the names of variables that would send a worker to the job that this one is in."""
    return launcher_variables() | _OUTER_JOB


def default_settings(size: int) -> dict[str, str]:
    """Return default values of variables, for those that the user has not set.

    Args:
        size: Number of workers that share this machine.
    """
    defaults = {"PYTHONUNBUFFERED": "1"}
    if size > 1:
        # By themselves the numeric libraries of each worker start a thread per core.
        threads = str(max(1, num_cores() // size))
        defaults.update(OMP_NUM_THREADS=threads, TF_NUM_INTRAOP_THREADS=threads)
    return defaults


def num_cores() -> int:
    """Return how many CPU cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
