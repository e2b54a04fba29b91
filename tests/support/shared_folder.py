"""Files that take minutes to make, made once for all processes that run the tests of a session."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable
from pathlib import Path

import pytest


def shared_folder(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], None]) -> Path:
    """Return a folder; the first process that asks for it fills it, and the others wait for that.

    Args:
        factory: pytest's.
        name: Of the folder; one for each content.
        make: Fills the empty folder that it is given.
    """
    base = factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        base = base.parent
    folder = base / name
    with (base / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            making = factory.mktemp(name)
            make(making)
            making.rename(folder)
    return folder
