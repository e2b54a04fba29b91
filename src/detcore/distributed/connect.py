"""Connect the ranks of a group to its first rank, which listens."""

from __future__ import annotations

import contextlib
import logging
import select
import socket
import time
from typing import NamedTuple

from detcore.contract.errors import DistributedError
from detcore.distributed import handshake
from detcore.distributed.wire import LinkLostError, RankChannel

logger = logging.getLogger(__name__)

_PROOF_TIME_S = 10.0  # handshake timeout
_MAX_STRANGERS = 256
_REFUSALS_S = 5.0  # how long to retry after failed proofs: another process may take over the port


class Address(NamedTuple):
    """Address of a group's first rank: the path of a Unix socket, or a host and a port."""

    path: str = ""
    host: str = ""
    port: int = 0

    def __str__(self) -> str:
        return self.path or f"{self.host}:{self.port}"


class _RefusedError(Exception):
    """Raised when the other end does not prove that it belongs to the job."""


def open_listener(address: Address, backlog: int) -> tuple[socket.socket, Address]:
    """Listen at an address. For port 0 the system chooses the port.

    Raises:
        DistributedError: If the port is in use, or the host is not this machine.
    """
    if address.path:
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listener.bind(address.path)
    else:
        resolved = _resolve_address(address)
        listener = socket.socket(resolved[0], socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(resolved[1])
        except OSError as error:
            listener.close()
            raise DistributedError(
                f"rank 0 cannot listen on {address}: {error.strerror}.\n"
                "A port belongs to one job at a time, and chief_ip is an address of rank 0's "
                "machine.\nPass a different pub_port or a port_offset, the same on all workers."
            ) from error
        address = address._replace(port=listener.getsockname()[1])
    listener.listen(backlog)
    return listener, address


def _resolve_address(address: Address) -> tuple[socket.AddressFamily, tuple[str, int]]:
    try:
        addresses = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise DistributedError(f"unknown address chief_ip={address.host!r}: {error}") from error
    host, port = addresses[0][4][:2]
    return addresses[0][0], (str(host), int(port))


class _Caller(NamedTuple):
    connection: socket.socket
    challenge: bytes
    received: bytearray
    until: float


def accept_group(
    listener: socket.socket, *, key: bytes, size: int, deadline: float
) -> tuple[dict[int, RankChannel], dict[int, RankChannel]]:
    """Wait until every other rank has connected twice and has proven to know the key.

    Peers that fail authentication are disconnected and logged.

    Returns:
        Connections for collectives by index in the group, and connections for questions by index.

    Raises:
        DistributedError: If a rank has not connected by the deadline.
    """
    listener.setblocking(False)
    poller = select.poll()
    poller.register(listener, select.POLLIN)
    callers: dict[int, _Caller] = {}
    channels: dict[int, dict[int, RankChannel]] = {handshake.CALLS: {}, handshake.QUESTIONS: {}}
    try:
        while any(len(purpose_channels) < size - 1 for purpose_channels in channels.values()):
            now = time.monotonic()
            if now > deadline:
                raise _make_missing_error(size, channels)
            for descriptor, caller in list(callers.items()):
                if now > caller.until:
                    _drop_caller(poller, callers, descriptor, "it sent no proof in time")
            for descriptor, _ in poller.poll(min(deadline - now, 0.25) * 1000):
                if descriptor == listener.fileno():
                    _accept_caller(listener, poller, callers)
                elif descriptor in callers:
                    _receive_claim(poller, callers, descriptor, channels, key=key, size=size)
    except BaseException:
        for purpose_channels in channels.values():
            for channel in purpose_channels.values():
                channel.close()
        raise
    finally:
        for caller in callers.values():
            caller.connection.close()
    return channels[handshake.CALLS], channels[handshake.QUESTIONS]


def _make_missing_error(size: int, channels: dict[int, dict[int, RankChannel]]) -> DistributedError:
    all_channels = channels.values()
    missing_ranks = [
        str(r)
        for r in range(1, size)
        if not all(r in purpose_channels for purpose_channels in all_channels)
    ]
    return DistributedError(
        f"rank{'s' * (len(missing_ranks) > 1)} {', '.join(missing_ranks)} of {size} did not join "
        "in time.\n"
        "They may have died before, or have different settings or a different job key.\n"
        "Look at their output. Without DETCORE_JOB_KEY (or key=...) the workers of a machine must "
        "have the same parent process.\nMore time: connect_timeout_s."
    )


def _accept_caller(
    listener: socket.socket, poller: select.poll, callers: dict[int, _Caller]
) -> None:
    try:
        connection, _ = listener.accept()
    except OSError:
        return
    challenge = handshake.new_nonce()
    connection.setblocking(False)
    if len(callers) >= _MAX_STRANGERS:
        connection.close()
        return
    with contextlib.suppress(OSError):  # a failure becomes visible when the answer is due
        connection.send(challenge)
    until = time.monotonic() + _PROOF_TIME_S
    callers[connection.fileno()] = _Caller(connection, challenge, bytearray(), until)
    poller.register(connection, select.POLLIN)


def _receive_claim(
    poller: select.poll,
    callers: dict[int, _Caller],
    descriptor: int,
    channels: dict[int, dict[int, RankChannel]],
    *,
    key: bytes,
    size: int,
) -> None:
    caller = callers[descriptor]
    try:
        data = caller.connection.recv(handshake.CALLER_SIZE - len(caller.received))
    except BlockingIOError:
        return
    except OSError:
        data = b""
    caller.received.extend(data)
    if not data:
        _drop_caller(poller, callers, descriptor, "it hung up")
        return
    if len(caller.received) < handshake.CALLER_SIZE:
        return
    claim = handshake.read_claim(key, caller.challenge, bytes(caller.received))
    if claim is None:
        _drop_caller(poller, callers, descriptor, "it does not know the job's key")
        return
    verdict = handshake.ACCEPTED
    if claim.size != size:
        verdict = handshake.OTHER_SIZE
    elif not 0 < claim.rank < size or claim.purpose not in channels:
        verdict = handshake.OUTSIDE
    elif claim.rank in channels[claim.purpose]:
        verdict = handshake.TAKEN
    try:
        caller.connection.send(claim.encode_verdict(key, verdict))
    except OSError:
        _drop_caller(poller, callers, descriptor, "it hung up")
        return
    if verdict != handshake.ACCEPTED:
        _drop_caller(
            poller, callers, descriptor, f"rank {claim.rank}: {handshake.VERDICTS[verdict]}"
        )
        return
    poller.unregister(descriptor)
    del callers[descriptor]
    from_caller, from_listener = claim.derive_session_keys(key)
    channels[claim.purpose][claim.rank] = RankChannel(
        caller.connection, (from_listener, from_caller)
    )


def _drop_caller(
    poller: select.poll, callers: dict[int, _Caller], descriptor: int, reason: str
) -> None:
    caller = callers.pop(descriptor)
    poller.unregister(descriptor)
    try:
        peer = caller.connection.getpeername() or "this machine"
    except OSError:
        peer = "an unknown address"
    caller.connection.close()
    logger.warning("a connection from %s was refused: %s", peer, reason)


def connect_rank(
    address: Address,
    key: bytes,
    *,
    rank: int,
    size: int,
    deadline: float,
    purpose: int = handshake.CALLS,
) -> RankChannel:
    """Connect to the first rank of a group, and retry until it listens.

    Args:
        address: Address of the first rank.
        key: The key of the group.
        rank: Index in the group.
        size: Number of ranks in the group.
        deadline: Time to give up, in the time of ``time.monotonic``.
        purpose: Purpose of the connection.

    Raises:
        DistributedError: If the first rank does not listen in time or does not accept this rank.
    """
    reason: object = "no rank is listening yet"
    refused_since = None
    pause = 0.002
    while time.monotonic() < deadline:
        try:
            return _connect_once(address, key, rank, size, purpose, deadline)
        except _RefusedError as refusal:
            reason = refusal
            refused_since = refused_since or time.monotonic()
            if time.monotonic() - refused_since > _REFUSALS_S:
                break
        except (OSError, LinkLostError) as error:
            reason, refused_since = error, None
        time.sleep(pause)
        pause = min(pause * 1.5, 0.1)
    raise DistributedError(
        f"rank {rank} could not join rank 0 at {address}: {reason}.\n"
        "Rank 0 has died, was not started, or has different settings or a different job key.\n"
        "Look at its output. Without DETCORE_JOB_KEY (or key=...) the workers of a machine must "
        "have the same parent process.\nMore time: connect_timeout_s."
    )


def _connect_once(
    address: Address, key: bytes, rank: int, size: int, purpose: int, deadline: float
) -> RankChannel:
    if address.path:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        target: str | tuple[str, int] = address.path
    else:
        family, target = _resolve_address(address)
        connection = socket.socket(family, socket.SOCK_STREAM)
    try:
        connection.settimeout(max(min(deadline - time.monotonic(), _PROOF_TIME_S), 0.01))
        connection.connect(target)
        challenge = _receive_exactly(connection, handshake.NONCE_SIZE)
        claim = handshake.Claim(rank, size, challenge, handshake.new_nonce(), purpose)
        connection.sendall(claim.encode_claim(key))
        verdict = claim.read_verdict(key, _receive_exactly(connection, handshake.LISTENER_SIZE))
    except BaseException:
        connection.close()
        raise
    if verdict == handshake.ACCEPTED:
        return RankChannel(connection, claim.derive_session_keys(key))
    connection.close()
    if verdict is None:
        raise _RefusedError("it did not prove that it knows the job's key")
    raise DistributedError(
        f"rank {rank} of {size} was not accepted at {address}: {handshake.VERDICTS[verdict]}.\n"
        "Two jobs may have the same settings, or a worker was started twice.\n"
        "Give each job a DETCORE_JOB_KEY (or key=...), or a port_offset."
    )


def _receive_exactly(connection: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        chunk = connection.recv(count - len(data))
        if not chunk:
            raise _RefusedError("it hung up while the job's key was being proven")
        data += chunk
    return data
