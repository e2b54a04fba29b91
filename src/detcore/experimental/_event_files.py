"""Find and open the event files of trials, which TensorBoard reads."""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from detcore.contract.errors import NotFoundError

if TYPE_CHECKING:
    from detcore.database import TrialRecord
    from detcore.experimental._transport import Document

__all__ = ["copy_event_files", "list_event_files", "open_event_file", "open_regular_file"]

# TensorBoard looks for the same part of a file's name.
_EVENTS = "tfevents"


def list_event_files(trial_dir: str | None) -> list[Document]:
    """Return ``name, size`` of the event files below a trial's folder, by name.

    Return an empty list for a trial that ran on another machine. Links are left out: they may
    lead anywhere.
    """
    found = []
    for folder, _, names in os.walk(trial_dir or ""):
        for name in names:
            path = os.path.join(folder, name)
            if _EVENTS not in name or not name.isprintable():
                continue
            with contextlib.suppress(FileNotFoundError):  # removed since it was listed
                status = os.lstat(path)
                if stat.S_ISREG(status.st_mode):
                    relative = Path(path).relative_to(trial_dir or "").as_posix()
                    found.append({"name": relative, "size": status.st_size})
    return sorted(found, key=lambda file: str(file["name"]))


def copy_event_files(trial_dir: str | None, folder: Path) -> int:
    """Copy a trial's event files to a folder, and return how many there are."""
    files = list_event_files(trial_dir)
    for file in files:
        target = folder / file["name"]
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(Path(trial_dir or "") / file["name"], target)
    return len(files)


def open_event_file(trial: TrialRecord, name: str) -> tuple[BinaryIO, int]:
    """Open an event file of a trial, and return it with its size.

    Raises:
        NotFoundError: If it has no such file.
    """
    missing = NotFoundError(f"trial {trial.id} has no event file {name!r}.")
    if trial.trial_dir is None or _EVENTS not in name.rpartition("/")[2] or "\0" in name:
        raise missing
    folder = os.path.realpath(trial.trial_dir)
    path = f"{folder}/{name}"
    if os.path.realpath(path) != path:  # a link, or a path that leads out of the folder
        raise missing
    try:
        return open_regular_file(Path(path))
    except OSError as error:
        raise missing from error


def open_regular_file(path: Path) -> tuple[BinaryIO, int]:
    """Open a regular file; anything else (a pipe would wait forever) counts as missing."""
    file = open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb")  # noqa: SIM115
    status = os.fstat(file.fileno())
    if not stat.S_ISREG(status.st_mode):
        file.close()
        raise FileNotFoundError(path)
    return file, status.st_size
