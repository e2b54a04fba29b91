"""Validate the six numbers that identify a worker."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from detcore.environment import read_variables
from detcore.errors import DistributedError

__all__ = ["NAMES", "check_numbers", "complete", "read_chief_ip", "read_numbers"]

NAMES = ("rank", "size", "local_rank", "local_size", "cross_rank", "cross_size")
_CHIEF_IP = "DET_CHIEF_IP"


def complete(given: Mapping[str, int | None]) -> dict[str, int]:
    """Return the numbers; those of a single worker if none is given.

    Raises:
        DistributedError: If only some are given.
    """
    missing = [name for name, number in given.items() if number is None]
    if len(missing) == len(given):
        return dict(zip(NAMES, (0, 1, 0, 1, 0, 1), strict=True))
    if missing:
        raise DistributedError(
            f"a DistributedContext was given without {', '.join(missing)}.\n"
            f"The six numbers ({', '.join(NAMES)}) are given all or none."
        )
    return {name: number for name, number in given.items() if number is not None}


def check_numbers(numbers: Mapping[str, int], chief_ip: str | None) -> None:
    """Check that the numbers are consistent.

    Raises:
        DistributedError: If they are not, or if several nodes have no address of rank 0.
    """
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
    if size == local_size and numbers["rank"] != numbers["local_rank"]:
        raise DistributedError(
            f"all {size} workers are on this node, but rank={numbers['rank']} has "
            f"local_rank={numbers['local_rank']}.\n"
            "On a single node the two are the same."
        )
    if size > local_size and chief_ip is None:
        raise DistributedError(
            f"{size} workers on {numbers['cross_size']} nodes, but no chief_ip.\n"
            "Workers on other nodes have to reach rank 0.\n"
            f"Pass chief_ip, or set {_CHIEF_IP}."
        )


def read_numbers(launcher: str, names: Sequence[str]) -> list[int]:
    """Return the numbers in a launcher's variables, in their order.

    Raises:
        DistributedError: If a variable is not set, or not a number.
    """
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


def read_chief_ip(chief_ip: str | None) -> str | None:
    """Return the given address of rank 0, or that of the variable DET_CHIEF_IP."""
    return chief_ip or read_variables((_CHIEF_IP,)).get(_CHIEF_IP)
