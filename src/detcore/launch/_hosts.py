"""The machines of a job, and the addresses by which they reach each other."""

from __future__ import annotations

import dataclasses
import fcntl
import re
import socket
import struct
from collections.abc import Sequence

from detcore.errors import WorkerError

__all__ = ["Host", "chief_address", "interface_towards", "interface_with", "parse_hosts"]

_PATTERN = re.compile(r"([A-Za-z0-9][A-Za-z0-9_.-]*)(?::([0-9]+))?")
_SIOCGIFADDR = 0x8915
_DISCARD_PORT = 9


@dataclasses.dataclass(frozen=True, slots=True)
class Host:
    """A machine, and how many workers it takes."""

    name: str
    slots: int


def parse_hosts(text: str) -> list[Host]:
    """Read ``"a:4,b:4"``; a name alone has one slot.

    Raises:
        ValueError: If it cannot be read, or names a machine twice.
    """
    hosts: list[Host] = []
    for part in text.split(","):
        match = _PATTERN.fullmatch(part.strip())
        if match is None or match[2] == "0":
            raise ValueError(f"{part.strip()!r} is not NAME:SLOTS, such as node1:4")
        if match[1] in [host.name for host in hosts]:
            raise ValueError(f"{match[1]!r} is named twice; add up its slots")
        hosts.append(Host(match[1], int(match[2] or 1)))
    return hosts


def interface_towards(hosts: Sequence[Host]) -> str:
    """Return the name of this machine's network interface that leads to the hosts.

    Raises:
        WorkerError: If a name has no address, or no interface is found.
    """
    sources = [_source_address(_address(host.name)) for host in hosts]
    source = next((found for found in sources if not found.startswith("127.")), sources[0])
    name = interface_with(source)
    if name is not None:
        return name
    raise WorkerError(
        f"no network interface of this machine has the address {source}, from which it reaches "
        f"{hosts[-1].name}.\nName the interface that leads to the other machines: "
        "--network-interface"
    )


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


def chief_address(hosts: Sequence[Host]) -> str:
    """Return the address of the first host, where rank 0 runs, as the others see it.

    Raises:
        WorkerError: If a name has no address.
    """
    addresses = [_address(host.name) for host in hosts]
    if addresses[0].startswith("127."):
        for address in addresses[1:]:
            source = _source_address(address)
            if not source.startswith("127."):
                return source
    return addresses[0]


def _address(name: str) -> str:
    try:
        return socket.gethostbyname(name)
    except OSError as error:
        raise WorkerError(f"the host {name!r} has no address: {error}") from error


def _source_address(address: str) -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((address, _DISCARD_PORT))  # sends nothing
        except OSError as error:
            raise WorkerError(f"this machine has no route to {address}: {error}") from error
        return str(probe.getsockname()[0])
