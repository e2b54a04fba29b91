"""Connect the ranks of a job to the group of all ranks and the group of their node."""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import socket
import stat
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from detcore.contract.errors import DistributedError
from detcore.distributed import handshake
from detcore.distributed.connect import Address, accept_group, connect_rank, open_listener
from detcore.distributed.launcher_settings import DEFAULT_PORT, LauncherSettings, Numbers
from detcore.distributed.rank_failures import make_lost_failure
from detcore.distributed.rank_group import Group, Hub, Spoke
from detcore.distributed.wire import WELCOME, LinkLostError, RankChannel
from detcore.environment import read_variables

_LOOPBACK = "127.0.0.1"
# Values that are the same in all processes of one job and differ between jobs.
_JOB_VARIABLES = (
    "TORCHELASTIC_RUN_ID",
    "MASTER_ADDR",
    "MASTER_PORT",
    "SLURM_JOB_ID",
    "SLURM_STEP_ID",
    "OMPI_MCA_ess_base_jobid",
    "PMIX_NAMESPACE",
    "HOROVOD_GLOO_RENDEZVOUS_ADDR",
    "HOROVOD_GLOO_RENDEZVOUS_PORT",
)


def join_groups(numbers: Numbers, settings: LauncherSettings) -> tuple[Group, Group | None]:
    """Connect to the other ranks.

    Args:
        numbers: The six numbers; more than one rank.
        settings: Settings of the connections.

    Returns:
        The group of all ranks, and the group of this node's ranks (None for a single rank).

    Raises:
        DistributedError: If not all ranks join in time.
    """
    deadline = time.monotonic() + settings.connect_timeout_s
    rank, size = numbers.rank, numbers.size
    members = list(range(size))
    if size == numbers.local_size:
        identity = (settings.get_job_key() or get_job_identity().encode()) + repr(
            (size, settings.get_port())
        ).encode()
        node_group = _join_here(identity, rank, members, settings, deadline)
        return node_group, node_group
    world_group = _join_across(rank, members, settings, deadline)
    try:
        return world_group, _join_node(world_group, numbers, settings, deadline)
    except BaseException as error:
        world_group.close(f"could not join the ranks of its node: {error!r}")
        raise


def _join_here(
    identity: bytes, index: int, members: list[int], settings: LauncherSettings, deadline: float
) -> Group:
    """Join ranks of this machine through the user's private directory."""
    place = MeetingPlace(identity)
    address = Address(path=place.socket_path)
    if index:
        return _create_spoke(address, identity, index, members, settings, deadline)
    place.claim_name()
    try:
        listener, _ = open_listener(address, len(members))
        return _create_hub(listener, identity, members, settings, deadline, place.release)
    finally:
        place.release()


def _join_across(
    rank: int, members: list[int], settings: LauncherSettings, deadline: float
) -> Group:
    """Join ranks of several machines through TCP connections to rank 0."""
    key = settings.get_job_key()
    if not key:
        raise DistributedError(
            "workers on several nodes need the job's key, which authenticates them.\n"
            "Set DETCORE_JOB_KEY to the same secret on all workers, or pass key=..."
        )
    port = settings.get_port()
    if port is None:
        port = 0 if settings.announce else DEFAULT_PORT
    address = Address(host=settings.chief_ip or _LOOPBACK, port=port)
    if rank == 0:
        try:
            listener, address = open_listener(address, len(members))
        except DistributedError as error:
            if settings.announce:
                settings.announce(str(error))  # the others are waiting for a port
            raise
        if settings.announce:
            settings.announce(tuple(address))
        return _create_hub(listener, key, members, settings, deadline)
    if settings.announce:
        answer = settings.announce(None)
        if isinstance(answer, str):
            raise DistributedError(answer)
        address = Address(*answer)
    return _create_spoke(address, key, rank, members, settings, deadline)


def _join_node(
    everybody: Group, numbers: Numbers, settings: LauncherSettings, deadline: float
) -> Group | None:
    """Join the ranks of one of several nodes. All ranks of the job call this together."""
    # Only ranks that receive the random name over authenticated connections know it.
    identity = secrets.token_bytes(32)
    entry = {**numbers._asdict(), "host": socket.gethostname(), "identity": identity}
    entries = everybody.exchange("joining the nodes", "allgather", entry) or []
    first_entry = _first_of_node(entries, entry)
    node_entries = [
        candidate for candidate in entries if _first_of_node(entries, candidate) is first_entry
    ]
    node_entries.sort(key=lambda node_entry: int(node_entry["local_rank"]))
    if [node_entry["local_rank"] for node_entry in node_entries] != list(range(numbers.local_size)):
        raise DistributedError(
            f"rank {numbers.rank} is one of local_size={numbers.local_size} workers on node "
            f"{entry['host']}, but the local ranks on this node are: "
            f"{[node_entry['local_rank'] for node_entry in node_entries]}.\n"
            "Check the numbers that the launcher gave to the workers."
        )
    if len(node_entries) == 1:
        return None
    members = [int(node_entry["rank"]) for node_entry in node_entries]
    name: bytes = first_entry["identity"]
    return _join_here(name, numbers.local_rank, members, settings, deadline)


def _first_of_node(entries: list[dict[str, Any]], mine: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entry of the first rank of a rank's node.

    Horovod counts ``cross_rank`` only among ranks of equal local rank, so with uneven nodes the
    machine's name is more reliable; several nodes on one machine differ by ``cross_rank``.
    """
    firsts = [e for e in entries if e["local_rank"] == 0 and e["host"] == mine["host"]]
    if len(firsts) > 1:
        firsts = [e for e in firsts if e["cross_rank"] == mine["cross_rank"]]
    if len(firsts) != 1:
        raise DistributedError(
            f"node {mine['cross_rank']} ({mine['host']}) has {len(firsts)} workers with "
            "local_rank=0.\nEvery node must have exactly one. Check the numbers that the launcher "
            "gave to the workers."
        )
    return firsts[0]


def _create_hub(
    listener: socket.socket,
    key: bytes,
    members: list[int],
    settings: LauncherSettings,
    deadline: float,
    release: Callable[[], None] | None = None,
) -> Group:
    size = len(members)
    try:
        channels, probes = accept_group(listener, key=key, size=size, deadline=deadline)
    finally:
        listener.close()
        if release is not None:
            release()
    # The name must be free for the next context before any rank learns that all have joined.
    for index, channel in channels.items():
        try:
            channel.send(WELCOME, {}, deadline=deadline)
        except LinkLostError as error:
            for open_channel in (*channels.values(), *probes.values()):
                open_channel.close()
            raise make_lost_failure(
                members[index], f"died while joining ({error})", {}
            ).to_error() from error
    return Hub(channels, members, timeout_s=settings.timeout_s, probes=probes)


def _create_spoke(
    address: Address,
    key: bytes,
    index: int,
    members: list[int],
    settings: LauncherSettings,
    deadline: float,
) -> Group:
    size = len(members)
    probe = None
    channel = connect_rank(address, key, rank=index, size=size, deadline=deadline)
    try:
        purpose = handshake.QUESTIONS
        probe = connect_rank(
            address, key, rank=index, size=size, deadline=deadline, purpose=purpose
        )
        _await_welcome(channel, members, deadline)
    except BaseException:
        channel.close()
        if probe is not None:
            probe.close()
        raise
    return Spoke(channel, index, members, timeout_s=settings.timeout_s, probe=probe)


def _await_welcome(channel: RankChannel, members: list[int], deadline: float) -> None:
    try:
        # The first rank gives up slightly earlier, and knows which ranks are missing.
        frame = channel.wait(deadline + 1.0)
    except LinkLostError as error:
        how = f"gave up or died while the workers joined ({error})"
        raise make_lost_failure(members[0], how, {}).to_error() from error
    if frame is None or frame.kind != WELCOME:
        raise DistributedError(
            f"rank {members[0]} did not report in time that all workers have joined.\n"
            "It waits for missing workers. Look at its output."
        )


def get_job_identity() -> str:
    """Return a string that identifies this job on this machine, for jobs without a key.

    The string consists of the launcher's variables, or of the parent process without a launcher.
    """
    values = read_variables(_JOB_VARIABLES)
    if values:
        return repr(sorted(values.items()))
    parent = os.getppid()
    start_time = ""
    with contextlib.suppress(OSError, IndexError):
        # Process ids are reused; field 22 is the time at which the process started.
        start_time = Path(f"/proc/{parent}/stat").read_text().rpartition(")")[2].split()[19]
    return f"parent {parent} {start_time}"


def make_private_directory() -> Path:
    """Return the user's directory for sockets, and create it with mode 0700.

    Raises:
        DistributedError: If another user owns the directory or may enter it.
    """
    # A socket path must fit into 107 bytes, so a long TMPDIR cannot be used.
    root = Path("/tmp") if os.access("/tmp", os.W_OK) else Path(tempfile.gettempdir())
    directory = root / f"detcore-{os.getuid()}"
    with contextlib.suppress(FileExistsError):
        directory.mkdir(mode=0o700)
    status = directory.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o077:
        raise DistributedError(
            f"{directory} is not a private directory of this user.\n"
            "The workers of a machine connect there, and other users must not have access.\n"
            f"Remove it, or run: chmod 700 {directory}"
        )
    return directory


class MeetingPlace:
    """The name under which a group of ranks connects, owned by the listening rank.

    Args:
        identity: Bytes that only the ranks of this group share.
    """

    def __init__(self, identity: bytes) -> None:
        name = hashlib.sha256(b"detcore meeting|" + identity).hexdigest()[:32]
        folder = make_private_directory()
        self.socket_path = str(folder / f"{name}.sock")
        self._lock_path = folder / f"{name}.lock"
        self._lock: int | None = None

    def claim_name(self) -> None:
        """Become the listener of this name, and remove leftovers of a dead listener.

        Raises:
            DistributedError: If another process listens under this name.
        """
        import fcntl

        while self._lock is None:
            lock = os.open(self._lock_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                os.close(lock)
                raise DistributedError(
                    "another process is waiting for workers under the same name.\n"
                    "Two jobs with the same parent process look alike without a key.\n"
                    "Give each job a DETCORE_JOB_KEY (or key=...), or a port_offset."
                ) from error
            # The file may have been removed between the two calls above.
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(lock), self._lock_path.stat()):
                    self._lock = lock
                    break
            os.close(lock)
        self._remove_socket()

    def release(self) -> None:
        """Remove the name. Established connections stay open."""
        if self._lock is None:
            return
        self._remove_socket()
        self._lock_path.unlink(missing_ok=True)
        os.close(self._lock)
        self._lock = None

    def _remove_socket(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.socket_path)
