"""Translate the errors of file systems into detcore's; find out early whether a storage works."""

from __future__ import annotations

import contextlib
import errno
import re
import time
import uuid
from collections.abc import Iterator
from typing import TYPE_CHECKING

from detcore.contract.errors import DetcoreError, StorageError, StorageFullError

if TYPE_CHECKING:
    from detcore.contract.storage import StorageBackend


# EFBIG is the counterpart of ENOSPC for a file size limit (ulimit -f).
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
PROBES = ".detcore-probe"
"""How the names of probes begin, or their folder is called."""
_NAME = re.compile(r"(\d+)-[0-9a-f]{32}")
# A probe takes seconds; the clocks of machines may differ by more.
STALE_AFTER_S = 24 * 3600.0


def is_storage_full(error: BaseException) -> bool:
    """Whether an error means that the storage is full."""
    return isinstance(error, OSError) and error.errno in _FULL


@contextlib.contextmanager
def translate_errors(what: str, url: str) -> Iterator[None]:
    """Turn operating system errors into `StorageError`; let missing and existing keys through.

    Args:
        what: Description of the operation, such as ``"writing a/b"``.
        url: The store's root.
    """
    try:
        yield
    except (FileNotFoundError, FileExistsError, DetcoreError):
        raise
    except OSError as error:
        if is_storage_full(error):
            raise StorageFullError(
                f"{what} failed: no room left in {url} ({error.strerror or error}).\n"
                "Make room there, then resume from the last checkpoint, which is untouched."
            ) from error
        hint = "Check that you may read and write there."
        if isinstance(error, PermissionError):
            hint = "This user may not do that there; check the owner and mode of the folder."
        raise StorageError(f"{what} failed in {url}: {error}.\n{hint}") from error


def probe_round_trip(storage: StorageBackend, prefix: str) -> None:
    """Write, read and delete a small file.

    Args:
        storage: The storage.
        prefix: Beginning of its key; the time and a random part follow.

    Raises:
        StorageError: If it fails.
    """
    data = uuid.uuid4().bytes
    key = f"{prefix}{int(time.time())}-{data.hex()}"
    with translate_errors("a first test of the checkpoint storage", storage.url):
        storage.replace(key, data)
        try:
            if storage.read(key) != data:
                raise StorageError(
                    f"{storage.url} gave back something else than was written to {key}.\n"
                    "Checkpoints would not be safe there."
                )
        finally:
            storage.delete([key])


def is_stale_probe(name: str) -> bool:
    """Whether a probe of this name was made more than a day ago, so that its process is gone."""
    match = _NAME.fullmatch(name)
    return match is not None and time.time() - int(match[1]) > STALE_AFTER_S
