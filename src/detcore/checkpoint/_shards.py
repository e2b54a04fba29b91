"""Divide the files of a sharded checkpoint among the workers, without I/O or communication."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from detcore.errors import CheckpointConflictError

__all__ = ["Part", "Shares", "merge_metadata", "resolve", "share_out"]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Files of one worker.

    Attributes:
        files: Size of each file by name; empty if the worker has no folder.
        directories: Empty folders.
        folder: Identity of its folder (machine, device and inode). None if it must not be
            identified with another worker's folder: with a selector, or without a folder.
    """

    files: Mapping[str, int]
    directories: Sequence[str] = ()
    folder: tuple[str, int, int] | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Shares:
    """Division of the files.

    Attributes:
        owners: Ranks that have a file of each name, lowest first; the first one saves it.
        directories: All empty folders.
        contested: Names of files that several workers have.
    """

    owners: Mapping[str, tuple[int, ...]]
    directories: tuple[str, ...]
    contested: tuple[str, ...]

    def of(self, rank: int) -> list[str]:
        """Return the names that a rank saves."""
        return [name for name, ranks in self.owners.items() if ranks[0] == rank]


def share_out(parts: Sequence[Part]) -> Shares:
    """Divide the files of all workers between them.

    Workers that have the same folder, and no selectors, count as one: the lowest of them saves it.

    Args:
        parts: The files of each rank.

    Raises:
        CheckpointConflictError: If one worker has a file where another has a folder.
    """
    owners: dict[str, tuple[int, ...]] = {}
    folders: dict[str, int] = {}
    seen: set[tuple[str, int, int]] = set()
    for rank, part in enumerate(parts):
        if part.folder is not None and part.folder in seen:
            continue
        if part.folder is not None:
            seen.add(part.folder)
        for name in part.files:
            owners[name] = (*owners.get(name, ()), rank)
        for name in (*_parents(part.files), *part.directories, *_parents(part.directories)):
            folders.setdefault(name, rank)
    both = sorted(set(owners) & set(folders))
    if both:
        name = both[0]
        raise _conflict(
            f"{name} is a file on rank {owners[name][0]} and a folder on rank {folders[name]}"
        )
    filled = set(_parents(owners)) | set(_parents(folders))
    empty = sorted(name for name in folders if name not in filled)
    contested = tuple(sorted(name for name, ranks in owners.items() if len(ranks) > 1))
    return Shares(owners, tuple(empty), contested)


def resolve(shares: Shares, digests: Sequence[Mapping[str, Any]]) -> None:
    """Check that files of the same name on several workers have the same content.

    Args:
        shares: The division of the files.
        digests: For each rank, the digests of its contested files, by name.

    Raises:
        CheckpointConflictError: If two workers have different files of one name.
    """
    different = []
    for name in shares.contested:
        first, *others = shares.owners[name]
        for rank in others:
            if digests[rank][name] != digests[first][name]:
                different.append(f"{name} is not the same on rank {first} and rank {rank}")
                break
    if different:
        more = f" (and {len(different) - 1} more)" if len(different) > 1 else ""
        raise _conflict(different[0] + more)


def merge_metadata(parts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Merge the metadata of all workers; dictionaries are merged key by key.

    Args:
        parts: Metadata of each rank, as plain JSON values.

    Raises:
        CheckpointConflictError: If two workers have different values for one key; the message names
            it as a path with slashes.
    """
    merged: dict[str, Any] = {}
    for rank, part in enumerate(parts):
        _merge(merged, part, "", rank)
    return merged


def _merge(into: dict[str, Any], part: Mapping[str, Any], where: str, rank: int) -> None:
    for key, value in part.items():
        path = f"{where}{key}"
        if key not in into:
            into[key] = _copied(value)
        elif isinstance(into[key], dict) and isinstance(value, Mapping):
            _merge(into[key], value, f"{path}/", rank)
        elif _differ(into[key], value):
            raise _conflict(
                f"the metadata {path!r} is {value!r} on rank {rank}, and {into[key]!r} on another"
            )


def _copied(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _copied(item) for key, item in value.items()}
    return value


def _differ(first: object, second: object) -> bool:
    return type(first) is not type(second) or first != second


def _parents(names: Mapping[str, Any] | Sequence[str]) -> set[str]:
    parents = set()
    for name in names:
        while "/" in name:
            name = name.rpartition("/")[0]
            parents.add(name)
    return parents


def _conflict(what: str) -> CheckpointConflictError:
    return CheckpointConflictError(
        f"refusing to save a sharded checkpoint with conflicts: {what}.\n"
        "One of them would be lost. Nothing was written.\n"
        "Use different file names on each worker, or save common files on one worker only."
    )
