"""Saying in detcore's words what a store said in its own."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator

from detcore.errors import DetcoreError, StorageError, StorageFullError

__all__ = ["is_full", "means_exists", "translated"]

# EFBIG is what a file size limit (ulimit -f) gives where a full disk gives ENOSPC.
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


def is_full(error: BaseException) -> bool:
    """Whether an error means that there is no room left."""
    return isinstance(error, OSError) and error.errno in _FULL


def means_exists(error: BaseException) -> bool:
    """Whether a failed create-only write means that the key exists.

    s3fs 2026.9 maps a 412 to FileExistsError only if the server's answer names the condition,
    which SeaweedFS does not do; the cause then tells.
    """
    if isinstance(error, FileExistsError):
        return True
    response = getattr(error.__cause__, "response", None)
    if not isinstance(response, dict):
        return False
    return bool(response.get("Error", {}).get("Code") == "PreconditionFailed")


@contextlib.contextmanager
def translated(what: str, url: str) -> Iterator[None]:
    """Turn operating system errors into `StorageError`; let missing and existing keys through.

    Args:
        what: What is being done, such as ``"writing a/b"``.
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
                "Make room there, then go on from the last checkpoint, which is untouched."
            ) from error
        hint = "Check that you may read and write there."
        if isinstance(error, PermissionError):
            hint = "This user may not do that there; check the owner and mode of the folder."
        raise StorageError(f"{what} failed in {url}: {error}.\n{hint}") from error
