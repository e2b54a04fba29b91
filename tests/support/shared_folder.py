"""Directories with expensive files that all test processes of a session share."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable
from pathlib import Path

import pytest


def shared_folder(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], None]) -> Path:
    """Return a shared directory. The first process fills it while other processes wait.

    Args:
        factory: pytest's directory factory.
        name: Name of the directory, unique for each content.
        make: Function that fills the empty directory.
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
