"""Pack and unpack the trial's code for machines without its directory."""

from __future__ import annotations

import io
import os
import zipfile
from pathlib import Path

from detcore.errors import WorkerError

_SKIPPED_DIRS = frozenset({".git", "__pycache__", ".ipynb_checkpoints"})
_MAX_BYTES = 200_000_000


def pack_code(folder: Path) -> bytes:
    """Return the files of a directory as an archive, without Git's files and caches.

    Raises:
        WorkerError: If the files are too large to send to every worker.
    """
    target = io.BytesIO()
    size = 0
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for root, names, files in os.walk(folder):
            names[:] = [name for name in names if name not in _SKIPPED_DIRS]
            for path in sorted(Path(root, name) for name in files):
                if not path.is_file():
                    continue
                size += path.stat().st_size
                if size > _MAX_BYTES:
                    raise WorkerError(
                        f"the code directory {folder} has more than {_MAX_BYTES // 10**6} MB, "
                        "which is too much to send to nodes on other machines.\n"
                        "Move data elsewhere, or put the directory where all machines see it and "
                        "set launcher.runtime_env.working_dir."
                    )
                archive.write(path, path.relative_to(folder))
    return target.getvalue()


def unpack_code(data: bytes, folder: Path) -> None:
    """Write the files of `pack_code`, packed by the same user, to a new directory."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        archive.extractall(folder)
