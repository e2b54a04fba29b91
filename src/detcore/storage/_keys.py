"""Which keys are safe."""

from __future__ import annotations

from detcore.errors import UnsafePathError

__all__ = ["check_key"]


def check_key(key: str) -> str:
    """Return a key, if it names something below a root whatever the root is.

    Raises:
        UnsafePathError: If it is empty or absolute, holds a NUL or an empty, ``.`` or ``..`` part,
            or cannot be written in UTF-8.
    """
    parts = key.split("/")
    if not key:
        reason = "it is empty"
    elif key.startswith("/"):
        reason = "it is absolute"
    elif "\0" in key:
        reason = "it holds a NUL character"
    elif ".." in parts:
        reason = "it holds '..', which leads out of its folder"
    elif "" in parts or "." in parts:
        reason = "it holds an empty or '.' part"
    elif not _is_utf8(key):
        reason = "it cannot be written in UTF-8, so other machines could not read it"
    else:
        return key
    raise UnsafePathError(
        f"the path {key!r} is refused: {reason}.\n"
        "Checkpoint files have relative names that stay below their checkpoint."
    )


def _is_utf8(key: str) -> bool:
    try:
        key.encode()
    except UnicodeEncodeError:
        return False
    return True
