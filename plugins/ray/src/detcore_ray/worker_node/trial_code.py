"""The trial's code, on its way to machines that do not have its folder."""

from __future__ import annotations

import io
import os
import zipfile
from pathlib import Path

from detcore.errors import WorkerError

_NOT_CODE = frozenset({".git", "__pycache__", ".ipynb_checkpoints"})
_MAX_BYTES = 200_000_000


def pack_code(folder: Path) -> bytes:
    """Return the files of a folder as an archive; Git's own and caches are left out.

    Raises:
        WorkerError: If they are too large to send to every worker.
    """
    target = io.BytesIO()
    size = 0
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for root, folders, files in os.walk(folder):
            folders[:] = [name for name in folders if name not in _NOT_CODE]
            for path in sorted(Path(root, name) for name in files):
                if not path.is_file():
                    continue
                size += path.stat().st_size
                if size > _MAX_BYTES:
                    raise WorkerError(
                        f"the code folder {folder} has more than {_MAX_BYTES // 10**6} MB, which "
                        "is too much to send to nodes on other machines.\n"
                        "Keep data elsewhere, or put the folder where all machines see it and set "
                        "launcher.runtime_env.working_dir."
                    )
                archive.write(path, path.relative_to(folder))
    return target.getvalue()


def unpack_code(data: bytes, folder: Path) -> None:
    """Write the files of `pack_code`, which this user packed, to a new folder."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        archive.extractall(folder)
