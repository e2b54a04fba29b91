"""Connect the workers of one machine by sockets and shared memory.

The first worker creates both, and distributes them over a Unix socket in a folder that only the
user can enter and that is removed immediately. Afterwards no socket listens.
"""

from __future__ import annotations

import contextlib
import hmac
import os
import secrets
import select
import socket
import struct
import tempfile
import time
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from detcore.errors import (
    CollectiveMismatchError,
    CollectiveTimeoutError,
    DistributedError,
    PeerLostError,
)

if TYPE_CHECKING:
    from detcore.core import DistributedContext


_HELLO = struct.Struct("<16sQ")
_ANSWER_S = 60.0  # every worker has connected before; only descriptors are passed on
_MEET, _BYE, _LOST, _LEFT, _LATE, _ASTRAY = range(6)
_HOW = {_LOST: "died or lost its connection", _LEFT: "closed its collectives"}
_FORMAT = struct.Struct("<QQQQ")


class _Message(NamedTuple):
    """A message of one worker; after a failure, `size` is the rank concerned."""

    kind: int
    number: int = 0
    fingerprint: int = 0
    size: int = 0


class Links:
    """This worker's connections to the others of its machine.

    Args:
        connections: Rank over all nodes -> connection.
        rank: This worker's rank over all nodes.
        timeout_s: How long to wait for a worker that is alive.
    """

    def __init__(
        self, connections: Mapping[int, socket.socket], *, rank: int, timeout_s: float
    ) -> None:
        self._connections = dict(connections)
        self._rank = rank
        self._timeout_s = timeout_s
        self._inboxes = {rank: bytearray() for rank in connections}
        self._gone: dict[int, int] = {}
        self._failure: DistributedError | None = None
        self._poller = select.poll()
        self._ranks = {}
        for other, connection in self._connections.items():
            connection.setblocking(False)
            self._ranks[connection.fileno()] = other
            self._poller.register(connection, select.POLLIN)
        _close_in_forks(self)

    def meet(self, number: int, fingerprint: int, size: int) -> None:
        """Return once every worker has called this, with the same three numbers.

        Args:
            number: Number of the meeting, from 1.
            fingerprint: Identifies the arrays to sum, ``0 <= fingerprint < 2**64``.
            size: Their size in bytes.

        Raises:
            PeerLostError: If a worker is gone; the same error at every later call.
            CollectiveMismatchError: If another worker passed other numbers.
            CollectiveTimeoutError: If a worker that is alive did not call it in time.
        """
        self.check()
        mine = _Message(_MEET, number, fingerprint, size)
        self._tell(mine)
        deadline = time.monotonic() + self._timeout_s
        waiting = set(self._connections)
        while True:
            for rank in sorted(waiting | self._gone.keys()):
                said = self._take(rank)
                if said == mine and rank in waiting:
                    waiting.discard(rank)
                elif said is not None:
                    self._refuse(rank, said)
            for rank, kind in self._gone.items():
                # One that left after reaching this meeting is missed at the next one.
                if rank in waiting or kind == _LOST:
                    self._fail(kind, rank)
            if not waiting:
                return
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                self._fail(_LATE, min(waiting))
            self._listen(remaining)

    def check(self) -> None:
        """Raise the previous failure, or an error if this worker has left."""
        if self._failure is not None:
            raise self._failure

    def close(self) -> None:
        """Notify the others that this worker leaves; idempotent."""
        self._tell(_Message(_BYE))
        self.abandon()

    def abandon(self) -> None:
        """Close the sockets without a message."""
        self._failure = self._failure or DistributedError(
            f"rank {self._rank} sums gradients after its collectives were closed, or in a forked "
            "process.\nOnly the worker itself can, before close()."
        )
        for connection in self._connections.values():
            connection.close()
        self._connections = {}

    def _tell(self, message: _Message) -> None:
        for connection in self._connections.values():
            # A worker that does not receive is gone, which receiving from it will show.
            with contextlib.suppress(OSError):
                connection.send(_FORMAT.pack(*message))

    def _listen(self, timeout_s: float) -> None:
        for descriptor, _ in self._poller.poll(timeout_s * 1000 + 1):
            rank = self._ranks[descriptor]
            try:
                data = self._connections[rank].recv(1 << 12)
            except BlockingIOError:
                continue
            except OSError:
                data = b""
            self._inboxes[rank] += data
            if not data:
                self._poller.unregister(descriptor)
                is_farewell = self._inboxes[rank].endswith(_FORMAT.pack(*_Message(_BYE)))
                self._gone[rank] = _LEFT if is_farewell else _LOST

    def _take(self, rank: int) -> _Message | None:
        inbox = self._inboxes[rank]
        if len(inbox) < _FORMAT.size:
            return None
        message = _Message(*_FORMAT.unpack_from(inbox))
        if message.kind == _BYE:
            return None
        del inbox[: _FORMAT.size]
        return message

    def _refuse(self, rank: int, said: _Message) -> None:
        if said.kind == _MEET:
            self._fail(_ASTRAY, rank)
        self._fail(said.kind, said.size)

    def _fail(self, kind: int, rank: int) -> None:
        if kind == _ASTRAY:
            self._failure = CollectiveMismatchError(
                f"ranks {self._rank} and {rank} sum different gradients at the same time.\n"
                "They have other shapes or types, or one worker takes another step than the other."
                "\nAll workers have to build the same model and take the same steps.",
                ranks=(rank,),
            )
        elif kind == _LATE:
            self._failure = CollectiveTimeoutError(
                f"rank {rank} did not come to sum the gradients within {self._timeout_s:g} s.\n"
                "It lives, and may wait for data or for a lock.\n"
                "Find out what holds it up.",
                ranks=(rank,),
            )
        else:
            self._failure = PeerLostError(
                f"rank {rank} {_HOW[kind]} while the others wait for its gradients.\n"
                f"Look at the output of rank {rank} for the reason; the trial can be resumed.",
                rank=rank,
            )
        self._tell(_Message(kind, size=rank))
        self.abandon()
        raise self._failure


def _close_in_forks(links: Links) -> None:
    """Close a child's copies after every fork, which would hide the death of this process."""
    reference = weakref.ref(links)

    def close() -> None:
        copy = reference()
        if copy is not None:
            copy.abandon()

    os.register_at_fork(after_in_child=close)


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
