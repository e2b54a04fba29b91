"""Check that keys are safe, and can coexist as files."""

from __future__ import annotations

import os
import re
import unicodedata
import uuid
from collections.abc import Callable, Iterable
from pathlib import Path

from detcore.contract.errors import UnsafePathError

# All current file systems accept this length for one name, and S3 and GCS for a whole key.
_MOST_PART_BYTES = 255
_MOST_KEY_BYTES = 1024
_DRIVE = re.compile(r"[A-Za-z]:[/\\]")


def check_key(key: str) -> str:
    """Return a key unchanged, after checking that it names something below any root.

    Raises:
        UnsafePathError: If it is empty or absolute, contains a control character (such as NUL or a
            newline) or an empty, ``.`` or ``..`` part, cannot be encoded in UTF-8, or exceeds the
            limits of stores and file systems: 1024 bytes, 255 for each part. The same holds, and it
            must not name a drive, with backslashes read as slashes, as some stores and Windows do.
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
    elif len(key.encode()) > _MOST_KEY_BYTES:
        reason = f"it has {len(key.encode())} bytes; stores take {_MOST_KEY_BYTES}"
    elif any(len(part.encode()) > _MOST_PART_BYTES for part in parts):
        reason = f"a part of it has more than the {_MOST_PART_BYTES} bytes that file systems take"
    else:
        return key
    shown = key if len(key) <= 200 else f"{key[:200]}..."
    raise UnsafePathError(
        f"the path {shown!r} is refused: {reason}.\n"
        "Checkpoint files have relative names that stay below their checkpoint."
    )


def is_safe_key(key: str) -> bool:
    """Whether `check_key` accepts a key; stores may list others, which detcore never writes."""
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


def check_targets(paths: Iterable[Path]) -> None:
    """Check, before one of them is written, that files can coexist.

    Names that differ only by case, or by the form of their accents, are valid if the file system
    distinguishes them; this is tested in the target folder.

    Raises:
        UnsafePathError: If two are the same, or one would be the folder of another, or the file
            system does not distinguish two of them.
    """
    seen: set[str] = set()
    folders: set[str] = set()
    folded: dict[str, str] = {}
    same: tuple[str, str] | None = None
    for path in paths:
        text = os.fspath(path)
        if text in seen:
            raise _clash(text, text, "they are the same file")
        seen.add(text)
        if os.fspath(path.parent) not in folders:
            folders.update(map(os.fspath, path.parents))
        other = folded.setdefault(_fold(text), text)
        if other != text and same is None:
            same = (other, text)
    for text in sorted(seen & folders):
        raise _clash(text, f"{text}/...", "one would be a file and a folder at once")
    if same is None:
        same = _folders_alike(folders)
    if same is not None and not _tells_apart(Path(same[0]), Path(same[1])):
        raise _clash(*same, "this file system takes them for one name")


def _folders_alike(folders: set[str]) -> tuple[str, str] | None:
    folded: dict[str, str] = {}
    for folder in sorted(folders):
        other = folded.setdefault(_fold(folder), folder)
        if other != folder:
            return other, folder
    return None


def _fold(text: str) -> str:
    return unicodedata.normalize("NFC", unicodedata.normalize("NFD", text).casefold())


def _tells_apart(
    first: Path, second: Path, exists: Callable[[str], bool] = os.path.lexists
) -> bool:
    """Test whether two names are different files, in the nearest existing folder."""
    folder = Path(os.path.commonpath([first, second]))
    while not folder.is_dir():
        folder = folder.parent
    token = uuid.uuid4().hex
    names = [
        f".detcore-{token}-" + os.path.relpath(path, folder).replace("/", "_")[-100:]
        for path in (first, second)
    ]
    trial = folder / names[0]
    trial.touch(exist_ok=False)
    try:
        return not exists(str(folder / names[1]))
    finally:
        trial.unlink()


def _clash(first: str, second: str, reason: str) -> UnsafePathError:
    return UnsafePathError(
        f"{first!r} and {second!r} cannot both be written: {reason}.\n"
        "Choose another folder, on a file system that tells them apart, or fewer files (selector)."
    )
