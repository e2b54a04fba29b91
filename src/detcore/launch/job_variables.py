"""The places of the workers of a job, and the variables by which they find each other."""

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
_INTERFACE = "lo0" if sys.platform == "darwin" else "lo"


class LocalJob:
    """A job whose workers are all on this machine: its key, and how workers find each other.

    Every job has a new key, which is passed in the environment only.

    Args:
        size: Number of workers; >= 1.
        services: Run as long as the job, so that workers find each other.
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
                opened = service.open(self._places, service.make_store(self._places))
                stack.callback(opened.close)
                self._opened.append(opened)
            self._stack = stack.pop_all()

    def environment(self, rank: int, variables: Mapping[str, str]) -> dict[str, str]:
        """Return all variables of a worker.

        Args:
            rank: Which one, ``0 <= rank < size``.
            variables: More variables; they take precedence.
        """
        place = self._places[rank]
        told = make_rank_variables(place, self._key)
        for opened in self._opened:
            told.update(opened.variables(place, interface=_INTERFACE, gradients=self._gradients))
        return child_environment(
            {**told, **variables},
            defaults=default_settings(place.size),
            without=outer_variables(),
        )

    def close(self) -> None:
        """Release ports."""
        self._stack.close()


def make_rank_variables(place: RankPlace, key: str) -> dict[str, str]:
    """Return the variables that tell a worker its place, and the key of its job.

    Args:
        place: Which worker.
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
    told = {f"DETCORE_{name}": str(number) for name, number in numbers.items()}
    return {**told, "DETCORE_JOB_KEY": key}


def framework_variables(plugins: PluginManager) -> dict[str, str]:
    """Return the variables that frameworks need in their workers, without those the user has set.

    All frameworks are included, because only importing a trial's code shows which one it uses.
    """
    frameworks = plugins.frameworks().values()
    wanted = {name: value for framework in frameworks for name, value in framework.variables}
    given = read_variables(wanted)
    return {name: value for name, value in wanted.items() if name not in given}


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


def drop_outer_job_variables(
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
