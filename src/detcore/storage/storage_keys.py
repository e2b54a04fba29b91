"""Check that storage keys are safe."""

from __future__ import annotations

import re
import unicodedata

from detcore.contract.errors import UnsafePathError

# All current file systems accept this length for one name, and S3 and GCS for a whole key.
_MAX_PART_BYTES = 255
_MAX_KEY_BYTES = 1024
_DRIVE = re.compile(r"[A-Za-z]:[/\\]")


def check_key(key: str) -> str:
    """Check that a key stays below its root on every storage, and return it unchanged.

    Raises:
        UnsafePathError: If the key is empty or absolute, contains a control character (such as NUL
            or a newline) or an empty, ``.`` or ``..`` part, cannot be encoded in UTF-8, or exceeds
            the limits of stores and file systems: 1024 bytes in total and 255 for each part. The
            key is also checked with backslashes read as slashes, as some stores and Windows do, and
            must not start with a drive letter.
    """
    parts = key.split("/")
    windows_parts = key.replace("\\", "/").split("/")
    if not key:
        reason = "it is empty"
    elif key.startswith("/"):
        reason = "it is absolute"
    elif "\0" in key:
        reason = "it holds a NUL character"
    elif not key.isprintable() and any(unicodedata.category(char) == "Cc" for char in key):
        reason = "it holds a control character, which stores refuse and terminals obey"
    elif ".." in parts:
        reason = "it holds '..', which leads out of its folder"
    elif "" in parts or "." in parts:
        reason = "it holds an empty or '.' part"
    elif not {"..", ".", ""}.isdisjoint(windows_parts):
        reason = "it leads elsewhere where a backslash is taken for a slash, as some stores do"
    elif _DRIVE.match(key):
        reason = "it begins with the letter of a drive"
    elif not _is_utf8(key):
        reason = "it cannot be written in UTF-8, so other machines could not read it"
    elif len(key.encode()) > _MAX_KEY_BYTES:
        reason = f"it has {len(key.encode())} bytes; stores take {_MAX_KEY_BYTES}"
    elif any(len(part.encode()) > _MAX_PART_BYTES for part in parts):
        reason = f"a part of it has more than the {_MAX_PART_BYTES} bytes that file systems take"
    else:
        return key
    shortened = key if len(key) <= 200 else f"{key[:200]}..."
    raise UnsafePathError(
        f"the path {shortened!r} is refused: {reason}.\n"
        "Checkpoint files have relative names that stay below their checkpoint."
    )


def is_safe_key(key: str) -> bool:
    """Whether `check_key` accepts a key. Stores may list other keys, which detcore never writes."""
    try:
        check_key(key)
    except UnsafePathError:
        return False
    return True


def _is_utf8(key: str) -> bool:
    try:
        key.encode()
    except UnicodeEncodeError:
        return False
    return True
