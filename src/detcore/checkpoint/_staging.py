"""A folder for the user's code to write to, before its files are part of a checkpoint."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from detcore.storage import StorageBackend

__all__ = ["staging_folder"]


@contextlib.contextmanager
def staging_folder(storage: StorageBackend, key: str) -> Iterator[tuple[Path, bool]]:
    """Yield a new folder, and whether it is on the storage's own file system.

    There it is what the key names, and is left; elsewhere it is removed after the block.
    """
    direct = storage.direct_path(key)
    if direct is not None:
        direct.mkdir(parents=True)
        yield direct, True
        return
    import tempfile

    temporary = Path(tempfile.mkdtemp(prefix="detcore-save-"))
    try:
        yield temporary, False
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
