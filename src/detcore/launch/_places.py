"""The places of ranks on several machines, and the variables that describe them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from detcore.launch._job import default_settings, horovod_settings, outer_variables
from detcore.types import TrialInfo

__all__ = ["RankPlace", "place_ranks", "rank_variables", "scope_sizes", "without_outer_job"]

_LOOPBACK = "127.0.0.1"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RankPlace:
    """The place of one worker among all, as `detcore.distributed.DistributedContext` counts.

    Attributes:
        rank: Its index over all nodes.
        size: Number of workers over all nodes.
        local_rank: Its index on its node.
        local_size: Number of workers on its node.
        cross_rank: Index of its node.
        cross_size: Number of nodes.
        column_rank: Its index among the workers of other nodes with the same `local_rank`, which
            Horovod calls ``cross_rank``.
        column_size: How many these are.
    """

    rank: int
    size: int
    local_rank: int
    local_size: int
    cross_rank: int
    cross_size: int
    column_rank: int
    column_size: int


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


def scope_sizes(places: Sequence[RankPlace]) -> dict[str, int]:
    """Return how many ranks each scope of Horovod's key-value server has."""
    sizes = {"global": len(places)}
    for place in places:
        sizes[f"local_{_host(place)}"] = place.local_size
        sizes[f"cross_{place.local_rank}"] = place.column_size
    return sizes


def rank_variables(
    place: RankPlace,
    info: TrialInfo,
    *,
    key: str,
    chief_address: str,
    chief_port: int,
    master_port: int,
    interface: str | None,
    rendezvous_port: int | None,
) -> dict[str, str]:
    """Return the variables by which a worker finds the others: detcore's, Horovod's and PyTorch's.

    Args:
        place: Which worker.
        info: The trial; its configuration says how Horovod fuses gradients.
        key: The job's secret.
        chief_address: Address of rank 0, as all workers see it.
        chief_port: A free port there, for `detcore.distributed`.
        master_port: Another one, for ``torch.distributed``.
        interface: The network interface through which this worker reaches the others, or None.
        rendezvous_port: Where this machine's `detcore.launch.nodes.RendezvousServer` listens.
    """
    told = _six("DETCORE_", place, place.cross_rank, place.cross_size)
    told["DETCORE_JOB_KEY"] = key
    if place.size == 1:
        return told
    told.update(_torch(place, chief_address, master_port, interface))
    if place.cross_size > 1:
        told.update(DET_CHIEF_IP=chief_address, DETCORE_CHIEF_PORT=str(chief_port))
    if rendezvous_port is not None:
        told.update(_horovod(place, rendezvous_port, interface))
        told.update(horovod_settings(info.config.get("optimizations") or {}))
    return told


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


def _host(place: RankPlace) -> str:
    # Not the machine's name: there may be several nodes on one, and Horovod asks for none.
    return f"node{place.cross_rank}"


def _six(prefix: str, place: RankPlace, cross_rank: int, cross_size: int) -> dict[str, str]:
    numbers = {
        "RANK": place.rank,
        "SIZE": place.size,
        "LOCAL_RANK": place.local_rank,
        "LOCAL_SIZE": place.local_size,
        "CROSS_RANK": cross_rank,
        "CROSS_SIZE": cross_size,
    }
    return {prefix + name: str(number) for name, number in numbers.items()}


def _horovod(place: RankPlace, port: int, interface: str | None) -> dict[str, str]:
    return {
        **_six("HOROVOD_", place, place.column_rank, place.column_size),
        "HOROVOD_HOSTNAME": _host(place),
        "HOROVOD_CONTROLLER": "gloo",
        "HOROVOD_CPU_OPERATIONS": "gloo",
        **({} if interface is None else {"HOROVOD_GLOO_IFACE": interface}),
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": _LOOPBACK,
        "HOROVOD_GLOO_RENDEZVOUS_PORT": str(port),
    }


def _torch(
    place: RankPlace, chief_address: str, port: int, interface: str | None
) -> dict[str, str]:
    numbers = {
        "RANK": place.rank,
        "WORLD_SIZE": place.size,
        "LOCAL_RANK": place.local_rank,
        "LOCAL_WORLD_SIZE": place.local_size,
        "GROUP_RANK": place.cross_rank,
        "GROUP_WORLD_SIZE": place.cross_size,
        "ROLE_RANK": place.rank,
        "ROLE_WORLD_SIZE": place.size,
    }
    return {
        **{name: str(number) for name, number in numbers.items()},
        "MASTER_ADDR": chief_address,
        "MASTER_PORT": str(port),
        **({} if interface is None else {"GLOO_SOCKET_IFNAME": interface}),
    }
