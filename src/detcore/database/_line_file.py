"""A file of lines that outlives the process that writes it."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["LineFile"]


class LineFile:
    """Appends lines to a file; each is one write, so that a kill loses none before it.

    Behind a line that a full disk, or a crash of the machine, has cut the next begins a new one.

    Args:
        path: The file; it and its folder are made if they are not there.
    """

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._is_cut = not _ends_whole(path)

    def append(self, line: bytes) -> None:
        """Add a line, given without its end.

        Raises:
            OSError: If nothing of it could be written.
        """
        data = b"\n" * self._is_cut + line + b"\n"
        self._is_cut = os.write(self._descriptor, data) < len(data)

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)


def _ends_whole(path: Path) -> bool:
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - 1))
        return file.read(1) in (b"", b"\n")
