"""The output of a trial's workers: lines in a file of the trial's folder."""

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
        self._file: LineFile | None = None  # made for the first line

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
    """Return lines of a trial's output log from a place on, and the place behind them.

    Args:
        trial_dir: The trial's folder.
        position: Where to begin, in bytes: 0, or the place that an earlier call returned.
        limit: Maximum number of lines.

    Returns:
        Whole lines, oldest first (none while there is no log), and where the next page begins.
    """
    lines: list[LogLine] = []
    path = trial_dir / _NAME
    if not path.exists():
        return lines, position
    with path.open("rb") as file:
        file.seek(position)
        for line in file:
            if not line.endswith(b"\n") or len(lines) == limit:  # the rest is still to come
                break
            position += len(line)
            lines.extend(_parse(line))
    return lines, position


def _parse(line: bytes) -> Iterator[LogLine]:
    try:
        yield LogLine(**json.loads(line))
    except (ValueError, TypeError):
        return  # cut by a crash of the machine


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
