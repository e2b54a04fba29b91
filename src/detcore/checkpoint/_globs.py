"""Match glob patterns against the files of a checkpoint."""

from __future__ import annotations

import dataclasses
import fnmatch
from collections.abc import Collection, Iterable, Iterator

from detcore.errors import UnsafePathError

__all__ = ["Split", "split_by_globs"]


@dataclasses.dataclass(frozen=True, slots=True)
class Split:
    """Names that patterns remove from a checkpoint, and folders that become empty.

    Attributes:
        gone_files: Files that match, or lie in a folder that matches.
        gone_folders: Folders that match, or lie in one that matches.
        empty_folders: Folders that become empty.
    """

    gone_files: frozenset[str]
    gone_folders: frozenset[str]
    empty_folders: tuple[str, ...]


def split_by_globs(
    files: Collection[str], directories: Collection[str], globs: Iterable[str]
) -> Split:
    """Apply patterns by the rules of `pathlib.Path.glob`, relative to the checkpoint.

    ``**`` as a whole part stands for any folders, ``*`` for anything within one name, including
    hidden names, and ``**.txt`` is the same as ``*.txt``. A folder that matches is removed with its
    contents; ``folder/*`` leaves the folder, empty.

    Args:
        files: Names of the files, as relative POSIX paths.
        directories: Names of the empty folders.
        globs: The patterns.

    Raises:
        UnsafePathError: If a pattern is absolute or has a part ``..``.
    """
    patterns = [_parts(pattern) for pattern in globs]
    folders = {parent for name in (*files, *directories) for parent in _parents(name)}
    folders.update(directories)

    def is_named(name: str, *, is_folder: bool) -> bool:
        pieces = name.split("/") if name else []
        return any(_matches(pieces, parts, is_folder=is_folder) for parts in patterns)

    named = {folder for folder in ("", *folders) if is_named(folder, is_folder=True)}
    gone_folders = {
        f for f in folders if f in named or not named.isdisjoint(_parents(f, root=True))
    }
    gone_files = {
        file
        for file in files
        if not named.isdisjoint(_parents(file, root=True)) or is_named(file, is_folder=False)
    }
    left = (set(files) - gone_files) | (folders - gone_folders)
    filled = {parent for name in left for parent in _parents(name)}
    return Split(
        gone_files=frozenset(gone_files),
        gone_folders=frozenset(gone_folders),
        empty_folders=tuple(sorted(folders - gone_folders - filled)),
    )


def _parents(name: str, *, root: bool = False) -> Iterator[str]:
    """Yield the folders that contain a name, innermost first; the checkpoint's root as ""."""
    folder = name.rpartition("/")[0]
    while folder:
        yield folder
        folder = folder.rpartition("/")[0]
    if root:
        yield ""


def _parts(pattern: str) -> list[str]:
    parts = [part for part in pattern.split("/") if part not in ("", ".")]
    if pattern.startswith("/") or ".." in parts or not parts:
        raise UnsafePathError(
            f"the pattern {pattern!r} is refused: patterns are relative to the checkpoint and "
            "have no '..'.\nEverything is '**/*'."
        )
    # Several "**" in a row mean the same as one, and each adds to the running time.
    return [
        part
        for part, before in zip(parts, ["", *parts], strict=False)
        if (part, before) != ("**", "**")
    ]


def _matches(pieces: list[str], parts: list[str], *, is_folder: bool) -> bool:
    # All ways to match are followed in parallel: tried one after another, several "**" parts would
    # give too many combinations.
    reached = _with_skips({0}, parts)
    for piece in pieces:
        after = {
            index if parts[index] == "**" else index + 1
            for index in reached
            if index < len(parts)
            and (parts[index] == "**" or fnmatch.fnmatchcase(piece, parts[index]))
        }
        reached = _with_skips(after, parts)
    # As the last part, "**" matches folders, including the checkpoint's root.
    is_below = is_folder and parts[-1] == "**" and len(parts) - 1 in reached
    return len(parts) in reached or is_below


def _with_skips(reached: set[int], parts: list[str]) -> set[int]:
    """Add the part after each "**", which may match no folder at all."""
    last = len(parts) - 1
    return reached | {index + 1 for index in reached if index < last and parts[index] == "**"}
