"""Translate file system errors, and detect an unusable storage early."""

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
_FULL_ERRNOS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
PROBE_PREFIX = ".detcore-probe"
"""Prefix of the names of probe files, or name of their directory."""
_PROBE_NAME = re.compile(r"(\d+)-[0-9a-f]{32}")
# A probe takes seconds, but the clocks of machines may differ by more.
STALE_AFTER_S = 24 * 3600.0


def is_storage_full(error: BaseException) -> bool:
    """Whether an error means that the storage is full."""
    return isinstance(error, OSError) and error.errno in _FULL_ERRNOS


@contextlib.contextmanager
def translate_errors(what: str, url: str) -> Iterator[None]:
    """Turn operating system errors into `StorageError`; let missing and existing keys through.

    Args:
        what: The operation, such as ``"writing a/b"``.
        url: URL of the storage root.
    """
    try:
        yield
    except (FileNotFoundError, FileExistsError, DetcoreError):
        raise
    except OSError as error:
        if is_storage_full(error):
            raise StorageFullError(
                f"{what} failed: no space left in {url} ({error.strerror or error}).\n"
                "Free some space, then resume from the last checkpoint, which is intact."
            ) from error
        hint = "Check that this user may read and write there."
        if isinstance(error, PermissionError):
            hint = "This user lacks permission; check the owner and mode of the directory."
        raise StorageError(f"{what} failed in {url}: {error}.\n{hint}") from error


def probe_round_trip(storage: StorageBackend, prefix: str) -> None:
    """Write, read and delete a small file.

    Args:
        storage: The storage.
        prefix: Prefix of the key, which continues with the time and a random part.

    Raises:
        StorageError: If the storage does not work.
    """
    data = uuid.uuid4().bytes
    key = f"{prefix}{int(time.time())}-{data.hex()}"
    with translate_errors("a first test of the checkpoint storage", storage.url):
        storage.replace(key, data)
        try:
            if storage.read(key) != data:
                raise StorageError(
                    f"{storage.url} returned different data than was written to {key}.\n"
                    "Checkpoints would not be safe there."
                )
        finally:
            storage.delete([key])


def is_stale_probe(name: str) -> bool:
    """Whether a probe is more than a day old, so that its process must have exited."""
    match = _PROBE_NAME.fullmatch(name)
    return match is not None and time.time() - int(match[1]) > STALE_AFTER_S
