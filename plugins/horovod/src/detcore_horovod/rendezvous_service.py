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
    """Lets ``hvd.init()`` work in the workers of a job, over Gloo."""

    def make_store(self, places: Sequence[RankPlace]) -> MemoryStore:
        """Return the addresses that the workers leave, kept with rank 0."""
        return MemoryStore(_scope_sizes(places))

    def open(self, places: Sequence[RankPlace], store: RendezvousStore) -> HorovodRendezvous:
        """Start the key-value server of this machine.

        Args:
            places: All workers, by rank.
            store: The addresses, or an object that reaches them on another machine.
        """
        return HorovodRendezvous(store, most_workers=len(places))

    def start_on_hosts(
        self, command: Sequence[str], request: HostsRequest, sink: Sink
    ) -> HorovodRun:
        """Start a command through ``horovodrun``; see `detcore.launch.nodes.SupportsHosts`."""
        from detcore_horovod.horovodrun import start_on_hosts

        return start_on_hosts(command, request, sink)


class HorovodRendezvous(RendezvousServer):
    """The key-value server of one machine, and the variables that lead to it."""

    def variables(
        self, place: RankPlace, *, interface: str | None, gradients: GradientSettings
    ) -> dict[str, str]:
        """Return the variables of a worker.

        Args:
            place: The worker.
            interface: The network interface through which it reaches the others, or None.
            gradients: Horovod chooses the tensor fusion settings that are None.
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
            "HOROVOD_HOSTNAME": _host(place),
            "HOROVOD_CONTROLLER": "gloo",
            "HOROVOD_CPU_OPERATIONS": "gloo",
            **({} if interface is None else {"HOROVOD_GLOO_IFACE": interface}),
            "HOROVOD_GLOO_RENDEZVOUS_ADDR": _LOOPBACK,
            "HOROVOD_GLOO_RENDEZVOUS_PORT": str(self.port),
            **_fusion(gradients),
        }


def _scope_sizes(places: Sequence[RankPlace]) -> dict[str, int]:
    """Return how many ranks each scope of the key-value server has."""
    sizes = {"global": len(places)}
    for place in places:
        sizes[f"local_{_host(place)}"] = place.local_size
        sizes[f"cross_{place.local_rank}"] = place.column_size
    return sizes


def _host(place: RankPlace) -> str:
    # Not the machine's name: there may be several nodes on one, and Horovod asks for none.
    return f"node{place.cross_rank}"


def _fusion(gradients: GradientSettings) -> dict[str, str]:
    """Return the variables that configure how Horovod fuses gradients."""
    threshold, cycle_time = gradients.tensor_fusion_threshold, gradients.tensor_fusion_cycle_time
    settings = {}
    if threshold is not None:
        settings["HOROVOD_FUSION_THRESHOLD"] = str(threshold << 20)
    if cycle_time is not None:
        settings["HOROVOD_CYCLE_TIME"] = str(cycle_time)
    if gradients.auto_tune_tensor_fusion:
        settings["HOROVOD_AUTOTUNE"] = "1"
    return settings
