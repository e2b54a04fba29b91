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
    """Return the six numbers, or the numbers of a single worker if all are None.

    Raises:
        DistributedError: If only some numbers are None.
    """
    missing = [name for name, number in zip(NAMES, given, strict=True) if number is None]
    if len(missing) == len(given):
        return Numbers(0, 1, 0, 1, 0, 1)
    if missing:
        raise DistributedError(
            f"a DistributedContext was created without {', '.join(missing)}.\n"
            f"Pass all six numbers ({', '.join(NAMES)}) or none."
        )
    return Numbers(*(number for number in given if number is not None))


def check_numbers(numbers: Numbers, chief_ip: str | None) -> None:
    """Check that the six numbers are consistent.

    Raises:
        DistributedError: If they are inconsistent, or if several nodes have no address of rank 0.
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
            "On a single node both must be equal."
        )
    if size > local_size and chief_ip is None:
        raise DistributedError(
            f"{size} workers on {cross_size} nodes, but no chief_ip.\n"
            "Workers on other nodes must reach rank 0.\n"
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
    assert place is not None  # this launcher sets all numbers
    return place.numbers


def read_chief_ip(chief_ip: str | None) -> str | None:
    """Return the given address of rank 0, or the value of the variable DET_CHIEF_IP."""
    return chief_ip or _read_variable("DET_CHIEF_IP")


def _read_variable(name: str) -> str | None:
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

    def get_job_key(self) -> bytes | None:
        """Return the given key, or the value of the variable DETCORE_JOB_KEY."""
        key = _read_variable("DETCORE_JOB_KEY") if self.key is None else self.key
        return key.encode() if isinstance(key, str) else key

    def get_port(self) -> int | None:
        """Return the port that the user or the launcher chose, or None if the system may choose."""
        port, variable = self.port, _read_variable("DETCORE_CHIEF_PORT") or ""
        if port is None and variable.isdecimal():
            port = int(variable)
        if port is None and not self.port_offset:
            return None
        return (DEFAULT_PORT if port is None else port) + self.port_offset


class LauncherRanks(NamedTuple):
    """A worker's ranks according to one launcher."""

    numbers: Numbers
    chief_ip: str | None = None
    launcher: str = ""

    def __str__(self) -> str:
        numbers = ", ".join(f"{name}={number}" for name, number in self.numbers._asdict().items())
        return f"{self.launcher}: {numbers}"

    def agrees_with(self, other: LauncherRanks) -> bool:
        """Return whether both can be true: a launcher may start another launcher per node."""
        rank, size, *_, cross_rank, cross_size = self.numbers
        return other.numbers[:2] in ((rank, size), (cross_rank, cross_size), (0, 1))


def find_launcher_ranks() -> LauncherRanks | None:
    """Return this worker's ranks, or None if no launcher has started it.

    Raises:
        DistributedError: If launchers disagree, or if their variables are invalid.
    """
    candidates = []
    for launcher, (names, read) in _LAUNCHERS.items():
        values = read_variables(names)
        try:
            ranks = read(values)
        except KeyError:
            continue  # not this launcher, which sets all its variables
        except (ValueError, TypeError, AttributeError, IndexError) as error:
            raise DistributedError(
                f"{launcher}'s variables are inconsistent: {error}.\nThey are: {values}"
            ) from error
        if ranks is not None:
            candidates.append(ranks._replace(launcher=launcher))
    if not candidates:
        return None
    for ranks in candidates:
        # A process that detcore started as one worker may have used another launcher for several.
        if all(ranks.agrees_with(candidate) for candidate in candidates):
            return ranks
    listing = "\n".join(f"  {ranks}" for ranks in candidates)
    raise DistributedError(
        f"the variables of several launchers disagree about this worker:\n{listing}\n"
        "Unset the variables of the wrong launcher, or pass the six numbers."
    )


def check_assigned(*given: int) -> None:
    """Compare numbers from user code with the numbers that a launcher has assigned.

    Args:
        *given: The six numbers of a worker.

    Raises:
        DistributedError: If a launcher started this process as a different worker.
    """
    numbers = Numbers(*given)
    claimed = LauncherRanks(numbers)
    for launcher in _ASSIGNING:
        names, read = _LAUNCHERS[launcher]
        try:
            assigned = read(read_variables(names))
        except (KeyError, ValueError):
            continue  # this launcher has not started the process
        if assigned is None or assigned.numbers.size == 1 or claimed.agrees_with(assigned):
            return
        raise DistributedError(
            f"rank {numbers.rank} of {numbers.size} was claimed in a process that {launcher} "
            f"started as rank {assigned.numbers.rank} of {assigned.numbers.size}.\n"
            "Two workers with the same rank would record reports twice and wait for each other.\n"
            "Pass distributed=core.DistributedContext.from_env(), or start the script without "
            f"{launcher}."
        )


def launcher_variables() -> frozenset[str]:
    """Return the names of all variables from which a worker reads its ranks."""
    return frozenset(name for names, _ in _LAUNCHERS.values() for name in names)


def _make_reader(
    names: str, *, prefix: str = "", chief: str = ""
) -> tuple[tuple[str, ...], _Reader]:
    """Return the variables of a launcher that sets all six numbers, and their reader."""
    full = tuple(prefix + name for name in names.split())

    def read(values: Mapping[str, str]) -> LauncherRanks:
        return LauncherRanks(Numbers(*(int(values[name]) for name in full)), values.get(chief))

    return (*full, *([chief] if chief else [])), read


def _read_open_mpi(values: Mapping[str, str]) -> LauncherRanks:
    rank, size, local_rank, local_size = (int(values[name]) for name in _OPEN_MPI)
    if size % local_size:
        raise ValueError("Open MPI does not report the node, and the nodes are uneven")
    nodes = rank // local_size, size // local_size
    return LauncherRanks(Numbers(rank, size, local_rank, local_size, *nodes))


def _read_slurm(values: Mapping[str, str]) -> LauncherRanks:
    # Only srun sets SLURM_STEP_NUM_TASKS: a batch script is not a rank.
    size = int(values["SLURM_STEP_NUM_TASKS"])
    node = int(values["SLURM_NODEID"])
    counts: list[int] = []
    for part in values["SLURM_STEP_TASKS_PER_NODE"].split(","):
        count, _, repeat = part.partition("(x")
        counts += [int(count)] * int(repeat.rstrip(")") or 1)
    rank, local_rank = int(values["SLURM_PROCID"]), int(values["SLURM_LOCALID"])
    numbers = Numbers(rank, size, local_rank, counts[node], node, len(counts))
    return LauncherRanks(numbers, _find_first_host(values.get("SLURM_STEP_NODELIST", "")))


def _find_first_host(hosts: str) -> str | None:
    """Return ``"a03"`` for ``"a[03-05,9],b1"``."""
    match = re.match(r"([^\[,]+)(?:\[(\w+))?", hosts)
    return match[1] + (match[2] or "") if match else None


def _read_tf_config(values: Mapping[str, str]) -> LauncherRanks | None:
    config = json.loads(values["TF_CONFIG"])
    cluster, task = config.get("cluster", {}), config.get("task", {})
    workers = [
        (kind, i) for kind in ("chief", "master", "worker") for i in _list_indices(cluster, kind)
    ]
    if not workers:
        return None
    task_key = (task["type"], int(task["index"]))
    if task_key not in workers:
        raise ValueError(f"the task {task_key[0]} {task_key[1]} is not one of the workers")
    hosts = [str(cluster[kind][i]).rpartition(":")[0] for kind, i in workers]
    rank = workers.index(task_key)
    nodes = list(dict.fromkeys(hosts))
    host = hosts[rank]
    local = hosts[:rank].count(host), hosts.count(host)
    return LauncherRanks(
        Numbers(rank, len(workers), *local, nodes.index(host), len(nodes)), hosts[0]
    )


def _list_indices(cluster: Mapping[str, list[str]], kind: str) -> range:
    return range(len(cluster.get(kind, ())))


def _read_jax(values: Mapping[str, str]) -> LauncherRanks:
    rank, size = int(values["JAX_PROCESS_ID"]), int(values["JAX_NUM_PROCESSES"])
    host = values.get("JAX_COORDINATOR_ADDRESS", "").rpartition(":")[0]
    if host in ("localhost", "127.0.0.1", "[::1]"):
        return LauncherRanks(Numbers(rank, size, rank, size, 0, 1))
    # JAX runs one process on each node by default.
    return LauncherRanks(Numbers(rank, size, 0, 1, rank, size), host or None)


# Launchers whose ranks are those of the trial. Slurm and Open MPI may start independent scripts.
_ASSIGNING = ("detcore", "torchrun", "DeepSpeed", "Horovod")
_Reader = Callable[[Mapping[str, str]], "LauncherRanks | None"]
# The innermost launcher comes first: the launcher of this process before that of its parent.
_LAUNCHERS: Mapping[str, tuple[tuple[str, ...], _Reader]] = {
    "detcore": _make_reader(_SIX, prefix="DETCORE_"),
    "torchrun": _make_reader(
        "RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE GROUP_RANK GROUP_WORLD_SIZE",
        chief="MASTER_ADDR",
    ),
    "DeepSpeed": _make_reader(
        "RANK WORLD_SIZE LOCAL_RANK LOCAL_SIZE CROSS_RANK CROSS_SIZE", chief="MASTER_ADDR"
    ),
    "Horovod": _make_reader(_SIX, prefix="HOROVOD_"),
    "TF_CONFIG": (("TF_CONFIG",), _read_tf_config),
    "JAX": (("JAX_PROCESS_ID", "JAX_NUM_PROCESSES", "JAX_COORDINATOR_ADDRESS"), _read_jax),
    "Open MPI": (_OPEN_MPI, _read_open_mpi),
    "Slurm": (
        (
            "SLURM_PROCID",
            "SLURM_STEP_NUM_TASKS",
            "SLURM_LOCALID",
            "SLURM_NODEID",
            "SLURM_STEP_TASKS_PER_NODE",
            "SLURM_STEP_NODELIST",
        ),
        _read_slurm,
    ),
}
