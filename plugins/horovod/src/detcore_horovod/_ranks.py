"""Environment variables by which the workers of one job find each other, and their addresses."""

from __future__ import annotations

import fcntl
import socket
import struct
from contextlib import ExitStack

from detcore.launch.nodes import RankPlace, place_variables

__all__ = ["interface_with", "rank_variables", "reserve_port", "torch_variables"]

_SIOCGIFADDR = 0x8915


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
    told = place_variables(place, key)
    if place.size == 1:
        return told
    told.update(torch_variables(place, chief_address, master_port, interface))
    if place.cross_size > 1:
        told.update(DET_CHIEF_IP=chief_address, DETCORE_CHIEF_PORT=str(chief_port))
    return told


def torch_variables(
    place: RankPlace, chief_address: str, port: int, interface: str | None = None
) -> dict[str, str]:
    """Return the variables by which ``torch.distributed`` connects the workers.

    Args:
        place: Which worker.
        chief_address: Address of rank 0, as all workers see it.
        port: A free port there.
        interface: The network interface through which this worker reaches the others, or None.
    """
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


def interface_with(address: str) -> str | None:
    """Return the name of this machine's network interface with an IPv4 address, None if none has.

    Args:
        address: Such as ``"10.0.0.7"``; all of ``127.*`` belongs to the loopback interface.
    """
    if address.startswith("127."):
        address = "127.0.0.1"
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            try:
                request = struct.pack("256s", name.encode()[:15])
                found = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, request)
            except OSError:
                continue  # it has no IPv4 address
            if socket.inet_ntoa(found[20:24]) == address:
                return name
    return None


def reserve_port(stack: ExitStack, address: str) -> int:
    """Return a free port of this machine, which is kept until the stack is closed.

    Args:
        stack: Releases it.
        address: Of this machine.
    """
    # Bound but not listening, it goes to no other process, and rank 0 can still listen on it.
    holder = stack.enter_context(socket.socket())
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    holder.bind((address, 0))
    return int(holder.getsockname()[1])
