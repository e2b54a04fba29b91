"""Environment variables by which the workers of one job find each other."""

from __future__ import annotations

import contextlib
import secrets
import socket
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

from detcore.contract.launch import RankPlace, Rendezvous, RendezvousService
from detcore.environment import child_environment, read_variables
from detcore.launch._places import default_settings, outer_variables, place_ranks

if TYPE_CHECKING:
    from detcore.hooks import PluginManager

__all__ = ["LocalJob", "framework_variables", "rank_variables"]

_LOOPBACK = "127.0.0.1"
_INTERFACE = "lo0" if sys.platform == "darwin" else "lo"


class LocalJob:
    """A job whose workers are all on this machine: its key, and how workers find each other.

    Every job has a new key, which is passed in the environment only.

    Args:
        size: Number of workers; >= 1.
        services: Run as long as the job, so that workers find each other.
        config: The experiment's configuration, for the services.
        torch: Whether ``torch.distributed.init_process_group()`` is to work in them.
    """

    def __init__(
        self,
        size: int,
        *,
        services: Mapping[str, RendezvousService] | None = None,
        config: Mapping[str, object] | None = None,
        torch: bool = False,
    ) -> None:
        self._places = place_ranks(["here"] * size)
        self._config = config or {}
        self._key = secrets.token_hex(32)
        self._stack = contextlib.ExitStack()
        self._opened: list[Rendezvous] = []
        try:
            for service in (services or {}).values():
                opened = service.open(self._places, service.make_store(self._places))
                self._stack.callback(opened.close)
                self._opened.append(opened)
            self._master_port = self._reserve_port() if torch else None
        except BaseException:
            self._stack.close()
            raise

    def _reserve_port(self) -> int:
        # Bound but not listening, it goes to no other process, and rank 0 can still listen on it.
        holder = self._stack.enter_context(socket.socket())
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind((_LOOPBACK, 0))
        return int(holder.getsockname()[1])

    def environment(self, rank: int, variables: Mapping[str, str]) -> dict[str, str]:
        """Return all variables of a worker.

        Args:
            rank: Which one, ``0 <= rank < size``.
            variables: More variables; they take precedence.
        """
        place = self._places[rank]
        told = _own(place, self._key)
        for opened in self._opened:
            told.update(opened.variables(place, interface=_INTERFACE, config=self._config))
        if self._master_port is not None:
            told.update(_torch(place, _LOOPBACK, self._master_port))
        return child_environment(
            {**told, **variables},
            defaults=default_settings(place.size),
            without=outer_variables(),
        )

    def close(self) -> None:
        """Release ports."""
        self._stack.close()


def rank_variables(
    place: RankPlace,
    *,
    key: str,
    chief_address: str,
    chief_port: int,
    master_port: int,
    interface: str | None,
) -> dict[str, str]:
    """Return the variables by which a worker finds the others: detcore's, and PyTorch's.

    Args:
        place: Which worker.
        key: The job's secret.
        chief_address: Address of rank 0, as all workers see it.
        chief_port: A free port there, for `detcore.distributed`.
        master_port: Another one, for ``torch.distributed``.
        interface: The network interface through which this worker reaches the others, or None.
    """
    told = _own(place, key)
    if place.size == 1:
        return told
    told.update(_torch(place, chief_address, master_port, interface))
    if place.cross_size > 1:
        told.update(DET_CHIEF_IP=chief_address, DETCORE_CHIEF_PORT=str(chief_port))
    return told


def _own(place: RankPlace, key: str) -> dict[str, str]:
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


def _torch(
    place: RankPlace, chief_address: str, port: int, interface: str | None = None
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


def framework_variables(plugins: PluginManager) -> dict[str, str]:
    """Return the variables that frameworks need in their workers, without those the user has set.

    All frameworks are included, because only importing a trial's code shows which one it uses.
    """
    frameworks = plugins.frameworks().values()
    wanted = {name: value for framework in frameworks for name, value in framework.variables}
    given = read_variables(wanted)
    return {name: value for name, value in wanted.items() if name not in given}
