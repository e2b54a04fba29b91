"""Finding out what is in a folder that is to become a checkpoint."""

from __future__ import annotations

import dataclasses
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

from detcore.checkpoint._manifest import MANIFEST_FILE
from detcore.errors import InvalidCheckpointError, UnsafePathError

__all__ = ["Scan", "Selector", "scan_folder"]

Selector: TypeAlias = Callable[[str], bool]
"""Whether a name belongs to it: a relative POSIX path; those of empty folders end in ``/``."""


@dataclasses.dataclass(frozen=True, slots=True)
class Scan:
    """What a folder holds.

    Attributes:
        files: Path of each file by its name below the folder.
        directories: Names of folders with nothing in them.
    """

    files: dict[str, Path]
    directories: tuple[str, ...]


def scan_folder(folder: Path, selector: Selector | None = None) -> Scan:
    """List the files below a folder, and refuse what cannot be saved safely.

    Links to files inside of the folder count as files.

    Args:
        folder: The folder; nothing is written to it.
        selector: Which files and empty folders to take; default: all.

    Raises:
        InvalidCheckpointError: If it is no folder, or holds something that is neither file nor
            folder, or a file that is called like the manifest.
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
    if MANIFEST_FILE in files:
        raise InvalidCheckpointError(
            f"{folder} holds a file called {MANIFEST_FILE}.\n"
            "detcore writes its own under that name, and a checkpoint counts by it.\n"
            "Give your file another name, or put it into a folder of its own."
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
                    f"{entry.path} is {_kind(entry)}, which cannot be saved.\n"
                    "A checkpoint holds files and folders."
                )
    if is_empty and prefix:
        directories.append(prefix.rstrip("/"))


def _check_link(entry: os.DirEntry[str], name: str, root: str) -> None:
    target = os.path.realpath(entry.path)
    if os.path.commonpath([root, target]) != root:
        raise UnsafePathError(
            f"{name!r} is a link that leads out of the checkpoint folder, to {target}.\n"
            "What it points to may change or vanish, and would not be saved.\n"
            "Copy the file into the folder instead."
        )
    if not os.path.isfile(target):
        what = "to a folder" if os.path.isdir(target) else "to nothing"
        raise InvalidCheckpointError(
            f"{name!r} is a link {what}.\nOnly links to files of the same folder can be saved."
        )


def _kind(entry: os.DirEntry[str]) -> str:
    mode = entry.stat(follow_symlinks=False).st_mode
    if stat.S_ISFIFO(mode):
        return "a named pipe"
    if stat.S_ISSOCK(mode):
        return "a socket"
    return "a device"
