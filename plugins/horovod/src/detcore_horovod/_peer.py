"""The owner of a connection on the loopback address."""

from __future__ import annotations

import os
import socket
import struct
from pathlib import Path

_CONNECTIONS = Path("/proc/net/tcp")
_LOCAL, _REMOTE, _UID = 1, 2, 7


def is_own_peer(peer: tuple[str, int], here: tuple[str, int], *, uid: int | None = None) -> bool:
    """Return whether a process of this user holds the other end of a TCP connection.

    On systems that do not report the owner (all but Linux), every peer counts as this user's.

    Args:
        peer: IPv4 address and port of the other end, on this machine.
        here: Address and port of this end.
        uid: The required owner; default: this process's user.
    """
    wanted = _entry(peer), _entry(here)
    try:
        lines = _CONNECTIONS.read_text().splitlines()
    except FileNotFoundError:
        return True
    for line in lines[1:]:
        fields = line.split()
        if (fields[_LOCAL], fields[_REMOTE]) == wanted:
            return int(fields[_UID]) == (os.getuid() if uid is None else uid)
    return False


def _entry(address: tuple[str, int]) -> str:
    (number,) = struct.unpack("=I", socket.inet_aton(address[0]))
    return f"{number:08X}:{address[1]:04X}"
