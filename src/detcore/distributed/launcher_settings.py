"""Read a worker's ranks and settings from the environment variables of launchers."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from detcore.contract.errors import DistributedError
from detcore.contract.values import COLLECTIVE_TIMEOUT_S, CONNECT_TIMEOUT_S
from detcore.environment import read_variables

DEFAULT_PORT = 12360
_SIX = "RANK SIZE LOCAL_RANK LOCAL_SIZE CROSS_RANK CROSS_SIZE"


class Numbers(NamedTuple):
    """The six numbers of a worker; see `detcore.distributed.DistributedContext`."""

    rank: int
    size: int
    local_rank: int
    local_size: int
    cross_rank: int
    cross_size: int


NAMES = Numbers._fields
_OPEN_MPI = tuple(f"OMPI_COMM_WORLD_{name.upper()}" for name in NAMES[:4])


def complete_ranks(*given: int | None) -> Numbers:
    """Return the numbers; those of a single worker if none is given.

    Raises:
        DistributedError: If only some are given.
    """
    missing = [name for name, number in zip(NAMES, given, strict=True) if number is None]
    if len(missing) == len(given):
        return Numbers(0, 1, 0, 1, 0, 1)
    if missing:
        raise DistributedError(
            f"a DistributedContext was given without {', '.join(missing)}.\n"
            f"The six numbers ({', '.join(NAMES)}) are given all or none."
        )
    return Numbers(*(number for number in given if number is not None))


def check_numbers(numbers: Numbers, chief_ip: str | None) -> None:
    """Check that the numbers are consistent.

    Raises:
        DistributedError: If they are not, or if several nodes have no address of rank 0.
    """
    rank, size, local_rank, local_size, cross_rank, cross_size = numbers
    for scope, index, count in (
        ("", rank, size), ("local_", local_rank, local_size), ("cross_", cross_rank, cross_size),
    ):  # fmt: skip
        if not 0 <= index < count:
            raise DistributedError(
                f"{scope}rank={index} is outside of {scope}size={count}.\n"
                "A rank counts from 0 and is less than its size."
            )
    if local_size > size or cross_size > size:
        raise DistributedError(
            f"size={size} workers in all, but local_size={local_size} on this node and "
            f"cross_size={cross_size} nodes.\n"
            "The size counts the workers of all nodes."
        )
    if size == local_size and rank != local_rank:
        raise DistributedError(
            f"all {size} workers are on this node, but rank={rank} has "
            f"local_rank={local_rank}.\n"
            "On a single node the two are the same."
        )
    if size > local_size and chief_ip is None:
        raise DistributedError(
            f"{size} workers on {cross_size} nodes, but no chief_ip.\n"
            "Workers on other nodes have to reach rank 0.\n"
            "Pass chief_ip, or set DET_CHIEF_IP."
        )


def read_numbers(launcher: str) -> Numbers:
    """Return the numbers in a launcher's variables.

    Raises:
        DistributedError: If a variable is not set, or not a number.
    """
    names, read = _LAUNCHERS[launcher]
    values = read_variables(names)
    try:
        place = read(values)
    except KeyError as error:
        missing = [name for name in names[: len(NAMES)] if name not in values]
        raise DistributedError(
            f"{launcher}'s variables are not set: {', '.join(missing)}.\n"
            f"They are set in processes that {launcher} starts."
        ) from error
    except ValueError as error:
        raise DistributedError(f"{launcher}'s variables are not numbers: {values}") from error
    assert place is not None  # of a launcher that sets all numbers
    return place.numbers


def read_chief_ip(chief_ip: str | None) -> str | None:
    """Return the given address of rank 0, or that of the variable DET_CHIEF_IP."""
    return chief_ip or _read("DET_CHIEF_IP")


def _read(name: str) -> str | None:
    return read_variables((name,)).get(name)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class LauncherSettings:
    """Settings of the connections and timeouts; see `detcore.distributed.DistributedContext`.

    Attributes:
        announce: Passes a value of rank 0 to all ranks, such as Horovod's ``broadcast_object``.
    """

    chief_ip: str | None
    port: int | None = None
    port_offset: int = 0
    key: bytes | str | None = None
    timeout_s: float = COLLECTIVE_TIMEOUT_S
    connect_timeout_s: float = CONNECT_TIMEOUT_S
    announce: Callable[[Any], Any] | None = None

    def job_key(self) -> bytes | None:
        """Return the given key, or that of the variable DETCORE_JOB_KEY."""
        key = _read("DETCORE_JOB_KEY") if self.key is None else self.key
        return key.encode() if isinstance(key, str) else key

    def chosen_port(self) -> int | None:
        """Return the port that the user or the launcher chose, or None if the system may choose."""
        port, told = self.port, _read("DETCORE_CHIEF_PORT") or ""
        if port is None and told.isdecimal():
            port = int(told)
        if port is None and not self.port_offset:
            return None
        return (DEFAULT_PORT if port is None else port) + self.port_offset


class LauncherRanks(NamedTuple):
    """A worker's ranks according to one launcher."""

    numbers: Numbers
    chief_ip: str | None = None
    launcher: str = ""

    def __str__(self) -> str:
        told = ", ".join(f"{name}={number}" for name, number in self.numbers._asdict().items())
        return f"{self.launcher}: {told}"

    def agrees(self, other: LauncherRanks) -> bool:
        """Return whether both can be true; a launcher may have started another on each node."""
        rank, size, *_, cross_rank, cross_size = self.numbers
        return other.numbers[:2] in ((rank, size), (cross_rank, cross_size), (0, 1))


def find_launcher_ranks() -> LauncherRanks | None:
    """Return this worker's ranks, or None if no launcher has started it.

    Raises:
        DistributedError: If launchers disagree, or one's variables are invalid.
    """
    places = []
    for launcher, (names, read) in _LAUNCHERS.items():
        values = read_variables(names)
        try:
            place = read(values)
        except KeyError:
            continue  # not this launcher, which sets all of them
        except (ValueError, TypeError, AttributeError, IndexError) as error:
            raise DistributedError(
                f"{launcher}'s variables make no sense: {error}.\nThey are: {values}"
            ) from error
        if place is not None:
            places.append(place._replace(launcher=launcher))
    if not places:
        return None
    for place in places:
        # A process that detcore started as one worker may have used another launcher for several.
        if all(place.agrees(other) for other in places):
            return place
    seen = "\n".join(f"  {place}" for place in places)
    raise DistributedError(
        f"the variables of several launchers disagree about this worker:\n{seen}\n"
        "Unset those that are left over from another launcher, or pass the six numbers."
    )


def check_assigned(*given: int) -> None:
    """Check numbers that user code gives against those that a launcher has assigned.

    Args:
        *given: The six numbers of a worker.

    Raises:
        DistributedError: If this process was started as another worker.
    """
    numbers = Numbers(*given)
    claimed = LauncherRanks(numbers)
    for launcher in _ASSIGNING:
        names, read = _LAUNCHERS[launcher]
        try:
            assigned = read(read_variables(names))
        except (KeyError, ValueError):
            continue  # this launcher has not started the process
        if assigned is None or assigned.numbers.size == 1 or claimed.agrees(assigned):
            return
        raise DistributedError(
            f"rank {numbers.rank} of {numbers.size} was claimed in a process that {launcher} "
            f"started as rank {assigned.numbers.rank} of {assigned.numbers.size}.\n"
            "Two workers with one rank would record each report twice and wait for each other.\n"
            "Pass distributed=core.DistributedContext.from_env(), or start the script without "
            f"{launcher}."
        )


def launcher_variables() -> frozenset[str]:
    """Return the names of all variables from which a worker learns its ranks."""
    return frozenset(name for names, _ in _LAUNCHERS.values() for name in names)


def _six(names: str, *, prefix: str = "", chief: str = "") -> tuple[tuple[str, ...], _Reader]:
    """Return the variables of a launcher that sets all six numbers, and their reader."""
    full = tuple(prefix + name for name in names.split())

    def read(values: Mapping[str, str]) -> LauncherRanks:
        return LauncherRanks(Numbers(*(int(values[name]) for name in full)), values.get(chief))

    return (*full, *([chief] if chief else [])), read


def _open_mpi(values: Mapping[str, str]) -> LauncherRanks:
    rank, size, local_rank, local_size = (int(values[name]) for name in _OPEN_MPI)
    if size % local_size:
        raise ValueError("Open MPI does not say which node this is, and they are uneven")
    nodes = rank // local_size, size // local_size
    return LauncherRanks(Numbers(rank, size, local_rank, local_size, *nodes))


def _slurm(values: Mapping[str, str]) -> LauncherRanks:
    # Only srun sets SLURM_STEP_NUM_TASKS: a batch script is not a rank.
    size = int(values["SLURM_STEP_NUM_TASKS"])
    node = int(values["SLURM_NODEID"])
    counts: list[int] = []
    for part in values["SLURM_STEP_TASKS_PER_NODE"].split(","):
        count, _, repeat = part.partition("(x")
        counts += [int(count)] * int(repeat.rstrip(")") or 1)
    rank, local_rank = int(values["SLURM_PROCID"]), int(values["SLURM_LOCALID"])
    numbers = Numbers(rank, size, local_rank, counts[node], node, len(counts))
    return LauncherRanks(numbers, _first_host(values.get("SLURM_STEP_NODELIST", "")))


def _first_host(hosts: str) -> str | None:
    """Return ``"a03"`` for ``"a[03-05,9],b1"``."""
    match = re.match(r"([^\[,]+)(?:\[(\w+))?", hosts)
    return match[1] + (match[2] or "") if match else None


def _tf_config(values: Mapping[str, str]) -> LauncherRanks | None:
    config = json.loads(values["TF_CONFIG"])
    cluster, task = config.get("cluster", {}), config.get("task", {})
    workers = [(kind, i) for kind in ("chief", "master", "worker") for i in _indices(cluster, kind)]
    if not workers:
        return None
    mine = (task["type"], int(task["index"]))
    if mine not in workers:
        raise ValueError(f"the task {mine[0]} {mine[1]} is not one of the workers")
    hosts = [str(cluster[kind][i]).rpartition(":")[0] for kind, i in workers]
    rank = workers.index(mine)
    nodes = list(dict.fromkeys(hosts))
    host = hosts[rank]
    local = hosts[:rank].count(host), hosts.count(host)
    return LauncherRanks(
        Numbers(rank, len(workers), *local, nodes.index(host), len(nodes)), hosts[0]
    )


def _indices(cluster: Mapping[str, list[str]], kind: str) -> range:
    return range(len(cluster.get(kind, ())))


def _jax(values: Mapping[str, str]) -> LauncherRanks:
    rank, size = int(values["JAX_PROCESS_ID"]), int(values["JAX_NUM_PROCESSES"])
    host = values.get("JAX_COORDINATOR_ADDRESS", "").rpartition(":")[0]
    if host in ("localhost", "127.0.0.1", "[::1]"):
        return LauncherRanks(Numbers(rank, size, rank, size, 0, 1))
    # JAX runs one process on each node by default.
    return LauncherRanks(Numbers(rank, size, 0, 1, rank, size), host or None)


# Launchers whose ranks are those of the trial. Slurm and Open MPI may start independent scripts.
_ASSIGNING = ("detcore", "torchrun", "DeepSpeed", "Horovod")
_Reader = Callable[[Mapping[str, str]], "LauncherRanks | None"]
# The innermost first: the launcher of this process comes before the launcher of its parent.
_LAUNCHERS: Mapping[str, tuple[tuple[str, ...], _Reader]] = {
    "detcore": _six(_SIX, prefix="DETCORE_"),
    "torchrun": _six(
        "RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE GROUP_RANK GROUP_WORLD_SIZE",
        chief="MASTER_ADDR",
    ),
    "DeepSpeed": _six(
        "RANK WORLD_SIZE LOCAL_RANK LOCAL_SIZE CROSS_RANK CROSS_SIZE", chief="MASTER_ADDR"
    ),
    "Horovod": _six(_SIX, prefix="HOROVOD_"),
    "TF_CONFIG": (("TF_CONFIG",), _tf_config),
    "JAX": (("JAX_PROCESS_ID", "JAX_NUM_PROCESSES", "JAX_COORDINATOR_ADDRESS"), _jax),
    "Open MPI": (_OPEN_MPI, _open_mpi),
    "Slurm": (
        (
            "SLURM_PROCID",
            "SLURM_STEP_NUM_TASKS",
            "SLURM_LOCALID",
            "SLURM_NODEID",
            "SLURM_STEP_TASKS_PER_NODE",
            "SLURM_STEP_NODELIST",
        ),
        _slurm,
    ),
}
