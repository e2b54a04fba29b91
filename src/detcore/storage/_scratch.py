"""Make temporary folders that do not outlive their process, even if it is killed."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

__all__ = ["scratch_folder"]

_SCRATCH = "detcore-scratch-"
_NOT_LOCKED_YET = "detcore-unlocked-"


@contextlib.contextmanager
def scratch_folder() -> Iterator[Path]:
    """Yield a new temporary folder, which is removed after the block.

    If the process is killed before that, the next process that creates such a folder removes it,
    so a trial that is preempted during each save does not fill the disk.
    """
    import tempfile

    parent = Path(tempfile.gettempdir())
    _remove_those_of_the_dead(parent)
    unlocked = Path(tempfile.mkdtemp(prefix=_NOT_LOCKED_YET, dir=parent))
    descriptor = os.open(unlocked, os.O_RDONLY | os.O_DIRECTORY)
    folder = unlocked
    try:
        # Without a lock (on some network file systems) it keeps a name that is never cleaned up.
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            folder = unlocked.rename(parent / unlocked.name.replace(_NOT_LOCKED_YET, _SCRATCH))
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(descriptor)


def _remove_those_of_the_dead(parent: Path) -> None:
    """Remove this user's scratch folders that no process holds any more."""
    with os.scandir(parent) as entries:
        found = [entry.path for entry in entries if entry.name.startswith(_SCRATCH)]
    for path in found:
        with contextlib.suppress(OSError):  # in use, or being removed by another process
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                if os.fstat(descriptor).st_uid == os.geteuid():
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(path, ignore_errors=True)
            finally:
                os.close(descriptor)
