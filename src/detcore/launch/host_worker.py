"""Start one worker of a multi-machine job, with the variables for its connections."""

from __future__ import annotations

import contextlib
import fcntl
import signal
import socket
import struct
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path

from detcore.contract.errors import WorkerError
from detcore.contract.launch import OutputSink, RankPlace, WorkerGroup
from detcore.contract.values import TrialInfo
from detcore.launch.job_variables import make_rank_variables
from detcore.launch.local_launcher import LocalLauncher

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
    """Return the variables through which a worker finds the others, for detcore and PyTorch.

    Args:
        place: The ranks of the worker.
        key: The job's secret.
        chief_address: Address of rank 0 for all workers.
        chief_port: A free port on the machine of rank 0, for `detcore.distributed`.
        master_port: A second free port there, for ``torch.distributed``.
        interface: The network interface through which this worker reaches the others, or None.
    """
    variables = make_rank_variables(place, key)
    if place.size == 1:
        return variables
    variables.update(torch_variables(place, chief_address, master_port, interface))
    if place.cross_size > 1:
        variables.update(DET_CHIEF_IP=chief_address, DETCORE_CHIEF_PORT=str(chief_port))
    return variables


def torch_variables(
    place: RankPlace, chief_address: str, port: int, interface: str | None = None
) -> dict[str, str]:
    """Return the variables through which ``torch.distributed`` connects the workers.

    Args:
        place: The ranks of the worker.
        chief_address: Address of rank 0 for all workers.
        port: A free port on the machine of rank 0.
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


def find_interface(address: str) -> str | None:
    """Return the name of the network interface with an IPv4 address, or None.

    Args:
        address: An address of this machine, such as ``"10.0.0.7"``. All of ``127.*`` belongs to the
            loopback interface.
    """
    if address.startswith("127."):
        address = "127.0.0.1"
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            try:
                request = struct.pack("256s", name.encode()[:15])
                reply = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, request)
            except OSError:
                continue  # it has no IPv4 address
            if socket.inet_ntoa(reply[20:24]) == address:
                return name
    return None


def reserve_port(stack: ExitStack, address: str) -> int:
    """Return a free port of this machine, which stays reserved until the stack is closed.

    Args:
        stack: Releases the port.
        address: An address of this machine.
    """
    # A socket that is bound but not listening keeps the port from other processes, and rank 0 can
    # still listen on it.
    holder = stack.enter_context(socket.socket())
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    holder.bind((address, 0))
    return int(holder.getsockname()[1])


def start_rank(
    info: TrialInfo,
    environment: Mapping[str, str],
    *,
    rank: int,
    home: Path,
    on_output: OutputSink,
    disabled_plugins: frozenset[str] = frozenset(),
    allowed_plugins: frozenset[str] | None = None,
) -> WorkerGroup:
    """Start one worker of a trial on this machine. It ends when this process does.

    Args:
        info: The trial, with directories of this machine.
        environment: All variables of the worker, except those from the other arguments.
        rank: Rank of the worker.
        home: The directory of records and default checkpoints.
        on_output: Called from threads, one call at a time, with `rank`, the stream and the line.
        disabled_plugins: Plugins that are switched off in the worker.
        allowed_plugins: The only plugins that are on, or None for all.

    Returns:
        A group with this single worker.

    Raises:
        WorkerError: If the worker cannot be started.
    """
    launcher = LocalLauncher(environment=environment)
    with _unblock_signals():
        try:
            return launcher.start(
                info,
                home=home,
                on_output=lambda _, stream, line: on_output(rank, stream, line),
                disabled_plugins=disabled_plugins,
                allowed_plugins=allowed_plugins,
            )
        except OSError as error:
            raise WorkerError(
                f"rank {rank} did not start: cannot write below {info.trial_dir} on this machine: "
                f"{error.strerror}.\nSet DETCORE_HOME (now {home}) to a directory that every "
                "machine of the trial shares or can create."
            ) from error


@contextlib.contextmanager
def _unblock_signals() -> Iterator[None]:
    """Unblock all signals, because a process inherits the blocked signals of its parent."""
    blocked_signals = signal.pthread_sigmask(signal.SIG_SETMASK, ())
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked_signals)
