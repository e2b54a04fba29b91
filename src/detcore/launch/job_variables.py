"""Number the workers of a job, and compute the variables through which they find each other."""

from __future__ import annotations

import contextlib
import os
import secrets
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from detcore.contract.launch import RankPlace, Rendezvous, RendezvousService
from detcore.contract.values import GradientSettings
from detcore.distributed import launcher_variables
from detcore.environment import child_environment, read_variables

if TYPE_CHECKING:
    from detcore.plugins import PluginManager


# If inherited from an outer job, these variables would make a worker join that job.
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
_INTERFACE = "lo0" if sys.platform == "darwin" else "lo"


class LocalJob:
    """A job with all workers on this machine: its key and its rendezvous services.

    Every job has a new key, which is passed only in the environment.

    Args:
        size: Number of workers; >= 1.
        services: Rendezvous services by name, which run as long as the job.
        gradients: How the workers combine gradients, for the services.
    """

    def __init__(
        self,
        size: int,
        *,
        services: Mapping[str, RendezvousService] | None = None,
        gradients: GradientSettings | None = None,
    ) -> None:
        self._places = place_ranks(["here"] * size)
        self._gradients = gradients or GradientSettings()
        self._key = secrets.token_hex(32)
        self._opened: list[Rendezvous] = []
        with contextlib.ExitStack() as stack:
            for service in (services or {}).values():
                rendezvous = service.open(self._places, service.make_store(self._places))
                stack.callback(rendezvous.close)
                self._opened.append(rendezvous)
            self._stack = stack.pop_all()

    def make_environment(self, rank: int, variables: Mapping[str, str]) -> dict[str, str]:
        """Return all variables of a worker.

        Args:
            rank: Rank of the worker, ``0 <= rank < size``.
            variables: More variables, which take precedence.
        """
        place = self._places[rank]
        rank_variables = make_rank_variables(place, self._key)
        for rendezvous in self._opened:
            rank_variables.update(
                rendezvous.variables(place, interface=_INTERFACE, gradients=self._gradients)
            )
        return child_environment(
            {**rank_variables, **variables},
            defaults=make_default_variables(place.size),
            without=list_outer_variables(),
        )

    def close(self) -> None:
        """Release ports."""
        self._stack.close()


def make_rank_variables(place: RankPlace, key: str) -> dict[str, str]:
    """Return the variables with a worker's ranks and the key of its job.

    Args:
        place: The ranks of the worker.
        key: The job's secret.
    """
    numbers = {
        "RANK": place.rank,
        "SIZE": place.size,
        "LOCAL_RANK": place.local_rank,
        "LOCAL_SIZE": place.local_size,
        "CROSS_RANK": place.cross_rank,
        "CROSS_SIZE": place.cross_size,
    }
    rank_variables = {f"DETCORE_{name}": str(number) for name, number in numbers.items()}
    return {**rank_variables, "DETCORE_JOB_KEY": key}


def framework_variables(plugins: PluginManager) -> dict[str, str]:
    """Return the variables that frameworks need in their workers and that the user has not set.

    All frameworks are included, because the framework of a trial is unknown until its code is
    imported.
    """
    frameworks = plugins.frameworks().values()
    defaults = {name: value for framework in frameworks for name, value in framework.variables}
    user_variables = read_variables(defaults)
    return {name: value for name, value in defaults.items() if name not in user_variables}


def place_ranks(nodes: Sequence[str]) -> list[RankPlace]:
    """Number the workers of a job.

    Args:
        nodes: The node of each worker, by rank.

    Returns:
        The ranks of each worker. Nodes are numbered in the order of their first workers.
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


def drop_outer_job_variables(
    variables: Mapping[str, str], place: RankPlace, *, num_cores: int | None = None
) -> dict[str, str]:
    """Return variables for a worker, without those that would make it join an outer job.

    Args:
        variables: Variables, such as those of this process.
        place: The ranks of the worker.
        num_cores: Number of cores for this worker. Default: its share of the machine's cores.
    """
    defaults = make_default_variables(place.local_size)
    if num_cores is not None:
        defaults.update(OMP_NUM_THREADS=str(num_cores), TF_NUM_INTRAOP_THREADS=str(num_cores))
    outer_names = list_outer_variables()
    remaining = {name: value for name, value in variables.items() if name not in outer_names}
    return {**defaults, **remaining}


def list_outer_variables() -> frozenset[str]:
    """Return the names of variables that would make a worker join an outer job."""
    return launcher_variables() | _OUTER_JOB


def make_default_variables(size: int) -> dict[str, str]:
    """Return default values of variables that the user has not set.

    Args:
        size: Number of workers that share this machine.
    """
    defaults = {"PYTHONUNBUFFERED": "1"}
    if size > 1:
        # Without these variables, the numeric libraries of each worker start a thread per core.
        threads = str(max(1, count_cores() // size))
        defaults.update(OMP_NUM_THREADS=threads, TF_NUM_INTRAOP_THREADS=threads)
    return defaults


def count_cores() -> int:
    """Return the number of CPU cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
