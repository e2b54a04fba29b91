"""Explain a disk that filled up while a checkpoint was written in place."""

from __future__ import annotations

import errno
import shutil
from typing import TYPE_CHECKING

from detcore.errors import StorageFullError

if TYPE_CHECKING:
    from detcore.checkpoint._manifest import Manifest
    from detcore.storage import StorageBackend

__all__ = ["explain_full"]

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
# A disk with less space than this is taken for full after any failure: frameworks raise errors
# that do not say why a write failed.
_NOTHING_LEFT_BYTES = 64 * 1024


def explain_full(
    error: BaseException, storage: StorageBackend, uuid: str, last: Manifest | None
) -> StorageFullError | None:
    """Return an error that says how much space is missing, if a full disk caused the failure.

    Call it before the partial checkpoint is removed.

    Args:
        error: The exception that ended a save.
        storage: The storage that was written to in place.
        uuid: The checkpoint.
        last: The trial's previous checkpoint; the next one is about as large.
    """
    root = storage.direct_path("")
    if root is None or not root.is_dir() or isinstance(error, StorageFullError):
        return None
    if not isinstance(error, Exception):
        return None
    free = shutil.disk_usage(root).free
    if not _says_full(error) and free > _NOTHING_LEFT_BYTES:
        return None
    written = sum(entry.size for entry in storage.list(uuid))
    expected = last.size_bytes if last is not None else 0
    missing = max(1, expected - written - free)
    measure = (
        f"the last one took {expected} bytes, so about {missing} bytes are missing"
        if expected > written + free
        else f"at least {missing} bytes are missing"
    )
    return StorageFullError(
        f"no room left in {root} for checkpoint {uuid}: {written} bytes were written, {measure}.\n"
        "The partial checkpoint is removed; earlier checkpoints are untouched.\n"
        "Make room there (detcore checkpoint delete UUID), then resume from the last one.",
        missing_bytes=missing,
    )


def _says_full(error: BaseException) -> bool:
    seen: set[int] = set()
    link: BaseException | None = error
    while link is not None and id(link) not in seen:
        seen.add(id(link))
        if isinstance(link, OSError) and link.errno in _FULL:
            return True
        link = link.__cause__ or link.__context__
    return False
