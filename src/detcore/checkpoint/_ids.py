"""Create and check identifiers of checkpoints."""

from __future__ import annotations

import re
import uuid

from detcore.errors import UnsafePathError

__all__ = ["check_id", "new_id"]

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


def new_id() -> str:
    """Return a new identifier, without touching the state of `random`."""
    return str(uuid.uuid4())


def check_id(storage_id: str) -> str:
    """Return an identifier unchanged, after checking that it names one folder of the storage.

    Raises:
        UnsafePathError: If it could name anything else.
    """
    if isinstance(storage_id, str) and _ID.fullmatch(storage_id):
        return storage_id
    raise UnsafePathError(
        f"{storage_id!r} is not a checkpoint's UUID.\n"
        "A UUID has letters, digits, '-', '_' and '.', and is no path.\n"
        "List checkpoints with: detcore checkpoint list"
    )
