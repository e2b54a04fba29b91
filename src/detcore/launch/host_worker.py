"""Start a worker of a job of several machines, with the variables by which it finds the others."""

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
    """Return the variables by which a worker finds the others: detcore's, and PyTorch's.

    Args:
        place: Which worker.
        key: The job's secret.
        chief_address: Address of rank 0, as all workers see it.
        chief_port: A free port there, for `detcore.distributed`.
        master_port: Another one, for ``torch.distributed``.
        interface: The network interface through which this worker reaches the others, or None.
    """
    told = make_rank_variables(place, key)
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


def find_interface(address: str) -> str | None:
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
    """Start one worker of a trial on this machine; it ends when this process does.

    Args:
        info: Which trial it runs, with folders of this machine.
        environment: All of its variables, except those that the other arguments determine.
        rank: Which worker it is.
        home: The folder of records and default checkpoints.
        on_output: Called from threads, one at a time, with `rank`, the stream and the line.
        disabled_plugins: Plugins that are switched off in it.
        allowed_plugins: The only plugins that are on, or None for all.

    Returns:
        A group of this worker alone.

    Raises:
        WorkerError: If it cannot be started.
    """
    launcher = LocalLauncher(environment=environment)
    with _all_signals():
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
                f"rank {rank} did not start: nothing can be written below {info.trial_dir} on this "
                f"machine: {error.strerror}.\nDETCORE_HOME ({home}) is to be a folder that every "
                "machine of the trial may make or has in common."
            ) from error


@contextlib.contextmanager
def _all_signals() -> Iterator[None]:
    """Block no signals in a block: a process that is started there would block them too."""
    before = signal.pthread_sigmask(signal.SIG_SETMASK, ())
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
