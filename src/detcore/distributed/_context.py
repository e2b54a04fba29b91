"""Ranks, and collectives between them; one process so far."""

from __future__ import annotations

from typing import Any, TypeVar

from detcore.environment import read_variables
from detcore.errors import DistributedError

__all__ = ["DistributedContext"]

T = TypeVar("T")

_NUMBERS = ("rank", "size", "local_rank", "local_size", "cross_rank", "cross_size")
_DEEPSPEED = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_SIZE", "CROSS_RANK", "CROSS_SIZE")
_TORCH = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE")
_CHIEF_IP = "DET_CHIEF_IP"


class DistributedContext:
    """A worker's place among the workers of its trial, and small exchanges between them.

    The six numbers are given all or none; none means one worker. The collectives are for
    coordination; they do not replace those of a training framework.

    Attributes:
        rank: Index of this worker over all nodes.
        size: Number of workers over all nodes (world size).
        local_rank: Index of this worker on its node.
        local_size: Number of workers on this node (local world size).
        cross_rank: Index of this node.
        cross_size: Number of nodes.
    """

    def __init__(
        self,
        *,
        rank: int | None = None,
        size: int | None = None,
        local_rank: int | None = None,
        local_size: int | None = None,
        cross_rank: int | None = None,
        cross_size: int | None = None,
        chief_ip: str | None = None,
        pub_port: int = 12360,
        pull_port: int = 12376,
        port_offset: int = 0,
        force_tcp: bool = False,
    ) -> None:
        """Check the numbers.

        Args:
            rank: Index of this worker over all nodes, ``0 <= rank < size``.
            size: Number of workers over all nodes.
            local_rank: Index of this worker on its node.
            local_size: Number of workers on this node.
            cross_rank: Index of this node.
            cross_size: Number of nodes.
            chief_ip: Address of rank 0; needed when there is more than one node.
            pub_port: Accepted for compatibility; one worker opens no port.
            pull_port: Accepted for compatibility; one worker opens no port.
            port_offset: Accepted for compatibility; one worker opens no port.
            force_tcp: Accepted for compatibility; one worker opens no socket.

        Raises:
            DistributedError: If some of the numbers are missing, if they contradict each other,
                or if there is more than one worker.
        """
        given = (rank, size, local_rank, local_size, cross_rank, cross_size)
        numbers = _complete(dict(zip(_NUMBERS, given, strict=True)))
        _check_numbers(numbers, chief_ip)
        self.rank = numbers["rank"]
        self.size = numbers["size"]
        self.local_rank = numbers["local_rank"]
        self.local_size = numbers["local_size"]
        self.cross_rank = numbers["cross_rank"]
        self.cross_size = numbers["cross_size"]
        self._is_closed = False

    @classmethod
    def from_horovod(cls, hvd: Any, chief_ip: str | None = None) -> DistributedContext:
        """Take the numbers from an initialised Horovod module, such as ``horovod.tensorflow``.

        Args:
            hvd: The module, after ``hvd.init()``.
            chief_ip: Address of rank 0; default: the variable ``DET_CHIEF_IP``.
        """
        return cls(
            rank=hvd.rank(),
            size=hvd.size(),
            local_rank=hvd.local_rank(),
            local_size=hvd.local_size(),
            cross_rank=hvd.cross_rank(),
            cross_size=hvd.cross_size(),
            chief_ip=_chief_ip(chief_ip),
        )

    @classmethod
    def from_deepspeed(cls, chief_ip: str | None = None) -> DistributedContext:
        """Take the numbers from the variables that DeepSpeed's launcher sets.

        Args:
            chief_ip: Address of rank 0; default: the variable ``DET_CHIEF_IP``.
        """
        return cls._from_variables("DeepSpeed", _DEEPSPEED, chief_ip)

    @classmethod
    def from_torch_distributed(cls, chief_ip: str | None = None) -> DistributedContext:
        """Take the numbers from the variables that torchrun sets.

        Args:
            chief_ip: Address of rank 0; default: the variable ``DET_CHIEF_IP``.
        """
        return cls._from_variables("torchrun", _TORCH, chief_ip)

    @classmethod
    def _from_variables(
        cls, launcher: str, names: tuple[str, ...], chief_ip: str | None
    ) -> DistributedContext:
        numbers = _read_numbers(launcher, names)
        return cls(
            rank=numbers[0],
            size=numbers[1],
            local_rank=numbers[2],
            local_size=numbers[3],
            cross_rank=numbers[4],
            cross_size=numbers[5],
            chief_ip=_chief_ip(chief_ip),
        )

    def get_rank(self) -> int:
        """Return the index of this worker over all nodes."""
        return self.rank

    def get_local_rank(self) -> int:
        """Return the index of this worker on its node."""
        return self.local_rank

    def get_size(self) -> int:
        """Return the number of workers over all nodes."""
        return self.size

    def get_num_agents(self) -> int:
        """Return the number of nodes."""
        return self.cross_size

    def gather(self, stuff: T) -> list[T] | None:
        """Return every worker's value in rank order on the chief, None elsewhere."""
        return self._all_of_one("gather", stuff)

    def gather_local(self, stuff: T) -> list[T] | None:
        """Return the values of this node's workers on its first worker, None elsewhere."""
        return self._all_of_one("gather_local", stuff)

    def allgather(self, stuff: T) -> list[T]:
        """Return every worker's value in rank order (all_gather)."""
        return self._all_of_one("allgather", stuff)

    def allgather_local(self, stuff: T) -> list[T]:
        """Return the values of this node's workers in rank order."""
        return self._all_of_one("allgather_local", stuff)

    def broadcast(self, stuff: T) -> T:
        """Return the chief's value on every worker."""
        return self._all_of_one("broadcast", stuff)[0]

    def broadcast_local(self, stuff: T | None = None) -> T | None:
        """Return the value of this node's first worker on all workers of the node."""
        return self._all_of_one("broadcast_local", stuff)[0]

    def close(self) -> None:
        """End the exchanges; collectives fail from here on. Closing twice is fine."""
        self._is_closed = True

    def __enter__(self) -> DistributedContext:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def _all_of_one(self, name: str, stuff: T) -> list[T]:
        if self._is_closed:
            raise DistributedError(
                f"{name}() was called on a DistributedContext that is closed.\n"
                "Call it before close(), inside the with-block of the context."
            )
        return [stuff]


def _complete(given: dict[str, int | None]) -> dict[str, int]:
    missing = [name for name, number in given.items() if number is None]
    if len(missing) == len(given):
        return {"rank": 0, "size": 1, "local_rank": 0, "local_size": 1} | {
            "cross_rank": 0,
            "cross_size": 1,
        }
    if missing:
        raise DistributedError(
            f"a DistributedContext was given without {', '.join(missing)}.\n"
            f"The six numbers ({', '.join(_NUMBERS)}) are given all or none."
        )
    return {name: number for name, number in given.items() if number is not None}


def _check_numbers(numbers: dict[str, int], chief_ip: str | None) -> None:
    for scope in ("", "local_", "cross_"):
        index, count = numbers[f"{scope}rank"], numbers[f"{scope}size"]
        if not 0 <= index < count:
            raise DistributedError(
                f"{scope}rank={index} is outside of {scope}size={count}.\n"
                "A rank counts from 0 and is less than its size."
            )
    size, local_size = numbers["size"], numbers["local_size"]
    if local_size > size or numbers["cross_size"] > size:
        raise DistributedError(
            f"size={size} workers in all, but local_size={local_size} on this node and "
            f"cross_size={numbers['cross_size']} nodes.\n"
            "The size counts the workers of all nodes."
        )
    if size > local_size and chief_ip is None:
        raise DistributedError(
            f"{size} workers on {numbers['cross_size']} nodes, but no chief_ip.\n"
            "Workers on other nodes have to reach rank 0.\n"
            f"Pass chief_ip, or set {_CHIEF_IP}."
        )
    if size > 1:
        raise DistributedError(
            f"size={size}: this release of detcore trains in one process.\n"
            "Training on several processes arrives with a later release.\n"
            "Leave out the six numbers, or start one worker."
        )


def _read_numbers(launcher: str, names: tuple[str, ...]) -> list[int]:
    values = read_variables(names)
    missing = [name for name in names if name not in values]
    if missing:
        raise DistributedError(
            f"{launcher}'s variables are not set: {', '.join(missing)}.\n"
            f"They are set in processes that {launcher} starts."
        )
    numbers = []
    for name in names:
        try:
            numbers.append(int(values[name]))
        except ValueError as error:
            raise DistributedError(f"{name}={values[name]!r} is not a number") from error
    return numbers


def _chief_ip(chief_ip: str | None) -> str | None:
    return chief_ip or read_variables((_CHIEF_IP,)).get(_CHIEF_IP)
