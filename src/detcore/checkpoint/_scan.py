"""List the contents of a folder that will become a checkpoint."""

from __future__ import annotations

import dataclasses
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

from detcore.checkpoint._manifest import MANIFEST_FILE
from detcore.contract.errors import InvalidCheckpointError, UnsafePathError

__all__ = ["Scan", "Selector", "kind_of", "scan_folder"]

Selector: TypeAlias = Callable[[str], bool]
"""Whether a name belongs to it: a relative POSIX path; those of empty folders end in ``/``."""


@dataclasses.dataclass(frozen=True, slots=True)
class Scan:
    """Contents of a folder.

    Attributes:
        files: Path of each file by its name below the folder.
        directories: Names of empty folders.
    """

    files: dict[str, Path]
    directories: tuple[str, ...]

    def size_bytes(self) -> int:
        """Return the sum of the files' current sizes; reads each file's status."""
        return sum(path.stat().st_size for path in self.files.values())


def scan_folder(folder: Path, selector: Selector | None = None) -> Scan:
    """List the files below a folder, and refuse what cannot be saved safely.

    Links to files inside the folder count as files.

    Args:
        folder: The folder; nothing is written to it.
        selector: Selects the files and empty folders to take; default: all.

    Raises:
        InvalidCheckpointError: If it is not a folder, or contains something other than files and
            folders, or a file with the manifest's name.
        UnsafePathError: If a name is unsafe, or a link leads out of the folder.
    """
    if not folder.is_dir():
        what = "is not a folder" if folder.exists() else "does not exist"
        raise InvalidCheckpointError(f"the checkpoint folder {folder} {what}")
    files: dict[str, Path] = {}
    directories: list[str] = []
    _walk(folder, "", os.path.realpath(folder), files, directories)
    if selector is not None:
        files = {name: path for name, path in files.items() if selector(name)}
        directories = [name for name in directories if selector(f"{name}/")]
    is_folder = any(name.split("/", 1)[0] == MANIFEST_FILE for name in (*files, *directories))
    if is_folder or MANIFEST_FILE in files:
        what = "a file" if MANIFEST_FILE in files else "a folder"
        raise InvalidCheckpointError(
            f"{folder} holds {what} called {MANIFEST_FILE}.\n"
            "detcore writes its manifest under that name.\n"
            "Rename yours, or put it into a subfolder."
        )
    return Scan(files, tuple(directories))


def _walk(
    folder: Path, prefix: str, root: str, files: dict[str, Path], directories: list[str]
) -> None:
    from detcore.storage import check_key

    is_empty = True
    with os.scandir(folder) as entries:
        for entry in sorted(entries, key=lambda entry: entry.name):
            is_empty = False
            name = check_key(f"{prefix}{entry.name}")
            if entry.is_symlink():
                _check_link(entry, name, root)
            if entry.is_dir(follow_symlinks=False):
                _walk(Path(entry.path), f"{name}/", root, files, directories)
            elif entry.is_file():
                files[name] = Path(entry.path)
            else:
                raise InvalidCheckpointError(
                    f"{entry.path} is {kind_of(_mode(entry))}, which cannot be saved.\n"
                    "A checkpoint holds files and folders."
                )
    if is_empty and prefix:
        directories.append(prefix.rstrip("/"))


def _check_link(entry: os.DirEntry[str], name: str, root: str) -> None:
    target = os.path.realpath(entry.path)
    if os.path.commonpath([root, target]) != root:
        raise UnsafePathError(
            f"{name!r} is a link that leads out of the checkpoint folder, to {target}.\n"
            "Its target may change or vanish, and would not be saved.\n"
            "Copy the file into the folder instead."
        )
    if not os.path.isfile(target):
        what = "to a folder" if os.path.isdir(target) else "to nothing"
        raise InvalidCheckpointError(
            f"{name!r} is a link {what}.\nOnly links to files of the same folder can be saved."
        )


def _mode(entry: os.DirEntry[str]) -> int:
    return entry.stat(follow_symlinks=False).st_mode


def kind_of(mode: int) -> str:
    """Return a description of a special file, by its mode."""
    kinds = {
        stat.S_IFDIR: "a folder",
        stat.S_IFIFO: "a named pipe",
        stat.S_IFSOCK: "a socket",
    }
    return kinds.get(stat.S_IFMT(mode), "a device")
