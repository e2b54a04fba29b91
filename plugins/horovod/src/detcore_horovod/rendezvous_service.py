"""Horovod's rendezvous as a `detcore.launch.nodes.RendezvousService`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from detcore.launch.nodes import RankPlace, RendezvousStore, Sink
from detcore_horovod.rendezvous_server import MemoryStore, RendezvousServer

if TYPE_CHECKING:
    from detcore.launch.nodes import HostsRequest
    from detcore.types import GradientSettings
    from detcore_horovod.horovodrun import HorovodRun


_LOOPBACK = "127.0.0.1"


class HorovodService:
    """Makes ``hvd.init()`` work in the workers of a job, over Gloo."""

    def make_store(self, places: Sequence[RankPlace]) -> MemoryStore:
        """Return the store for the workers' addresses, next to rank 0."""
        return MemoryStore(_scope_sizes(places))

    def open(self, places: Sequence[RankPlace], store: RendezvousStore) -> HorovodRendezvous:
        """Start the key-value server of this machine.

        Args:
            places: All workers, by rank.
            store: The workers' addresses, in this process or on another machine.
        """
        return HorovodRendezvous(store, max_workers=len(places))

    def start_on_hosts(
        self, command: Sequence[str], request: HostsRequest, sink: Sink
    ) -> HorovodRun:
        """Start a command through ``horovodrun``; see `detcore.launch.nodes.SupportsHosts`."""
        from detcore_horovod.horovodrun import start_on_hosts

        return start_on_hosts(command, request, sink)


class HorovodRendezvous(RendezvousServer):
    """The key-value server of one machine, and the environment variables of its workers."""

    def variables(
        self, place: RankPlace, *, interface: str | None, gradients: GradientSettings
    ) -> dict[str, str]:
        """Return the environment variables of a worker.

        Args:
            place: The worker.
            interface: Network interface that reaches the other workers, or None.
            gradients: Tensor fusion settings. Horovod chooses settings that are None.
        """
        numbers = {
            "RANK": place.rank,
            "SIZE": place.size,
            "LOCAL_RANK": place.local_rank,
            "LOCAL_SIZE": place.local_size,
            "CROSS_RANK": place.column_rank,
            "CROSS_SIZE": place.column_size,
        }
        return {
            **{f"HOROVOD_{name}": str(number) for name, number in numbers.items()},
            "HOROVOD_HOSTNAME": _name_node(place),
            "HOROVOD_CONTROLLER": "gloo",
            "HOROVOD_CPU_OPERATIONS": "gloo",
            **({} if interface is None else {"HOROVOD_GLOO_IFACE": interface}),
            "HOROVOD_GLOO_RENDEZVOUS_ADDR": _LOOPBACK,
            "HOROVOD_GLOO_RENDEZVOUS_PORT": str(self.port),
            **_list_fusion_variables(gradients),
        }


def _scope_sizes(places: Sequence[RankPlace]) -> dict[str, int]:
    """Return the number of ranks in each scope of the key-value server."""
    sizes = {"global": len(places)}
    for place in places:
        sizes[f"local_{_name_node(place)}"] = place.local_size
        sizes[f"cross_{place.local_rank}"] = place.column_size
    return sizes


def _name_node(place: RankPlace) -> str:
    # Not the machine name, because a machine may run several nodes. Horovod accepts any name.
    return f"node{place.cross_rank}"


def _list_fusion_variables(gradients: GradientSettings) -> dict[str, str]:
    """Return the environment variables for Horovod's tensor fusion."""
    threshold, cycle_time = gradients.tensor_fusion_threshold, gradients.tensor_fusion_cycle_time
    settings = {}
    if threshold is not None:
        settings["HOROVOD_FUSION_THRESHOLD"] = str(threshold << 20)
    if cycle_time is not None:
        settings["HOROVOD_CYCLE_TIME"] = str(cycle_time)
    if gradients.auto_tune_tensor_fusion:
        settings["HOROVOD_AUTOTUNE"] = "1"
    return settings
