"""Output log of a trial's workers: lines in a file of the trial's directory."""

from __future__ import annotations

import dataclasses
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

from detcore.records.record_classes import LogLine

_NAME = "log.jsonl"


class OutputLog:
    """Appends lines to a trial's output log, as a `LineFile` does."""

    def __init__(self, trial_dir: Path, run: int) -> None:
        self._run = run
        self._path = trial_dir / _NAME
        self._file: LineFile | None = None  # opened for the first line

    def append(self, stream: str, text: str, *, rank: int = 0) -> None:
        """Add a line; see `LogLine`."""
        line = LogLine(time.time(), self._run, rank, stream, text)
        if self._file is None:
            self._file = LineFile(self._path)
        self._file.append(json.dumps(dataclasses.asdict(line)).encode())

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()


def read_output_log(
    trial_dir: Path, position: int = 0, *, limit: int | None = None
) -> tuple[list[LogLine], int]:
    """Return lines of a trial's output log from a position on, and the position after them.

    Args:
        trial_dir: The trial's directory.
        position: Start in bytes: 0, or the position that an earlier call returned.
        limit: Maximum number of lines.

    Returns:
        Complete lines, oldest first, and the start of the next page. Without a log file, the list
        is empty.
    """
    lines: list[LogLine] = []
    path = trial_dir / _NAME
    if not path.exists():
        return lines, position
    with path.open("rb") as file:
        file.seek(position)
        for line in file:
            if not line.endswith(b"\n") or len(lines) == limit:  # an incomplete line
                break
            position += len(line)
            lines.extend(_parse_line(line))
    return lines, position


def _parse_line(line: bytes) -> Iterator[LogLine]:
    try:
        yield LogLine(**json.loads(line))
    except (ValueError, TypeError):
        return  # truncated by a machine crash


class LineFile:
    """Appends lines to a file. Each line is one write, so a kill loses no earlier lines.

    After a line that was truncated by a full disk or a machine crash, the next line starts on a new
    line.

    Args:
        path: The file. It and its directory are created if they do not exist.
    """

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._is_cut = not _ends_whole(path)

    def append(self, line: bytes) -> None:
        """Add a line, passed without its line end.

        Raises:
            OSError: If no part of the line could be written.
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
