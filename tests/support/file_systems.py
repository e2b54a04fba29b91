"""Temporary file systems that are small enough to fill up."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest


@contextlib.contextmanager
def mounted_disk(folder: Path, *, size: str) -> Iterator[Path]:
    """Mount a real file system of a size such as ``"8m"`` at a new directory."""
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("a file system can only be mounted as root")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)
