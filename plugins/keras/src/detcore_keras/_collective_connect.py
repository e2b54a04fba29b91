"""Connect the workers of one machine by sockets and shared memory.

The first worker creates both, and distributes them over a Unix socket in a folder that only the
user can enter and that is removed immediately. Afterwards no socket listens.
"""

from __future__ import annotations

import contextlib
import hmac
import os
import secrets
import socket
import struct
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from detcore.errors import DistributedError, PeerLostError
from detcore_keras._collective_links import Links

if TYPE_CHECKING:
    from detcore.core import DistributedContext

__all__ = ["connect"]

_HELLO = struct.Struct("<16sQ")
_ANSWER_S = 60.0  # every worker has connected before; only descriptors are passed on


def connect(distributed: DistributedContext, *, timeout_s: float) -> tuple[Links, int]:
    """Connect the workers of this machine; all of them must call it together.

    Args:
        distributed: Used to exchange the address.
        timeout_s: How long the links wait for a worker that is alive.

    Returns:
        The links, and the descriptor of memory that all of them share, still empty.
    """
    ranks = distributed.allgather_local(distributed.rank)
    if distributed.local_rank == 0:
        connections, memory = _host(distributed, ranks)
    else:
        connections, memory = _call(distributed, ranks)
    return Links(connections, rank=distributed.rank, timeout_s=timeout_s), memory


def _host(
    distributed: DistributedContext, ranks: list[int]
) -> tuple[dict[int, socket.socket], int]:
    token = secrets.token_bytes(16)
    callers: dict[int, socket.socket] = {}
    # A socket's path must fit into 107 bytes, so a long TMPDIR cannot be used. The folder is
    # created with mode 0700, so other users cannot connect.
    root = "/tmp" if os.access("/tmp", os.W_OK) else None
    with (
        tempfile.TemporaryDirectory(prefix="detcore-sum-", dir=root) as folder,
        socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener,
    ):
        path = str(Path(folder) / "socket")
        listener.bind(path)
        listener.listen(len(ranks) + 16)
        distributed.broadcast_local((path, token))
        distributed.allgather_local("have called")
        listener.settimeout(_ANSWER_S)
        while len(callers) < len(ranks) - 1:
            caller, _ = listener.accept()
            caller.settimeout(1.0)  # the worker's message has arrived by now
            said = b""
            with contextlib.suppress(OSError):
                said = caller.recv(_HELLO.size, socket.MSG_WAITALL)
            if len(said) == _HELLO.size and hmac.compare_digest(said[:16], token):
                callers[_HELLO.unpack(said)[1]] = caller
            else:
                caller.close()
    memory = os.memfd_create("detcore-sum", os.MFD_CLOEXEC)
    for index, ends in _pairs(len(ranks)).items():
        others = [other for other in range(1, len(ranks)) if other != index]
        given = [memory, *(ends[other].fileno() for other in others)]
        socket.send_fds(callers[index], [b"."], given)
        for end in ends.values():
            end.close()
    return {ranks[index]: caller for index, caller in callers.items()}, memory


def _call(
    distributed: DistributedContext, ranks: list[int]
) -> tuple[dict[int, socket.socket], int]:
    where = distributed.broadcast_local()
    if where is None:
        raise DistributedError("the first worker of this machine did not say where to meet.")
    path, token = where
    caller = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    caller.connect(path)
    caller.sendall(_HELLO.pack(token, distributed.local_rank))
    distributed.allgather_local("have called")
    caller.settimeout(_ANSWER_S)
    data, descriptors, _, _ = socket.recv_fds(caller, 1, len(ranks))
    if not data:
        raise PeerLostError(
            f"rank {ranks[0]} died while the workers of this machine were connected.\n"
            f"Look at the output of rank {ranks[0]} for the reason.",
            rank=ranks[0],
        )
    memory, *rest = descriptors
    others = [other for other in range(1, len(ranks)) if other != distributed.local_rank]
    connections = {
        ranks[other]: socket.socket(fileno=end) for other, end in zip(others, rest, strict=True)
    }
    for descriptor in descriptors:
        os.set_inheritable(descriptor, False)
    return {ranks[0]: caller, **connections}, memory


def _pairs(count: int) -> dict[int, dict[int, socket.socket]]:
    """Return, for each worker but the first, a socket to each other worker but the first."""
    ends: dict[int, dict[int, socket.socket]] = {index: {} for index in range(1, count)}
    for one in range(1, count):
        for other in range(one + 1, count):
            ends[one][other], ends[other][one] = socket.socketpair(
                socket.AF_UNIX, socket.SOCK_STREAM
            )
    return ends
