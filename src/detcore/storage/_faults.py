"""Translate the errors of file systems into detcore's; find out early whether a storage works."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import re
import socket
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from detcore.contract.errors import DetcoreError, StorageError, StorageFullError

if TYPE_CHECKING:
    from detcore.contract.storage import StorageBackend


# EFBIG is the counterpart of ENOSPC for a file size limit (ulimit -f).
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
PROBES = ".detcore-probe"
"""How the names of probes begin, or their folder is called."""
_NAME = re.compile(r"(\d+)-(\d+)-([0-9a-f]*)-[0-9a-f]{32}")
# A probe takes seconds; the clocks of machines may differ by more.
_OLD_S = 24 * 3600.0


def is_full(error: BaseException) -> bool:
    """Whether an error means that the storage is full."""
    return isinstance(error, OSError) and error.errno in _FULL


@contextlib.contextmanager
def translated(what: str, url: str) -> Iterator[None]:
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
        if is_full(error):
            raise StorageFullError(
                f"{what} failed: no room left in {url} ({error.strerror or error}).\n"
                "Make room there, then resume from the last checkpoint, which is untouched."
            ) from error
        hint = "Check that you may read and write there."
        if isinstance(error, PermissionError):
            hint = "This user may not do that there; check the owner and mode of the folder."
        raise StorageError(f"{what} failed in {url}: {error}.\n{hint}") from error


def try_out(storage: StorageBackend, prefix: str) -> None:
    """Write, read and delete a small file.

    Args:
        storage: The storage.
        prefix: Beginning of its key; the time, the process that makes it, and a random part follow.

    Raises:
        StorageError: If it fails.
    """
    data = uuid.uuid4().bytes
    key = f"{prefix}{int(time.time())}-{os.getpid()}-{_place()}-{data.hex()}"
    with translated("a first test of the checkpoint storage", storage.url):
        storage.replace(key, data)
        try:
            if storage.read(key) != data:
                raise StorageError(
                    f"{storage.url} gave back something else than was written to {key}.\n"
                    "Checkpoints would not be safe there."
                )
        finally:
            storage.delete([key])


def is_left_over(name: str) -> bool:
    """Whether the process that made a name is gone, or made it more than a day ago."""
    match = _NAME.fullmatch(name)
    if match is None:
        return False
    made_at, pid, place = int(match[1]), int(match[2]), match[3]
    if time.time() - made_at > _OLD_S:
        return True
    # Process ids of another machine, or container, are meaningless here.
    return bool(place) and place == _place() and not _is_there(pid)


def _is_there(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:  # it belongs to another user
        return True
    return True


def _place() -> str:
    """Return an identifier of the processes visible to this one; "" if it is unknown."""
    try:
        boot_id = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        namespace = os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""
    text = f"{socket.gethostname()} {boot_id} {namespace}"
    return hashlib.sha256(text.encode()).hexdigest()[:12]
