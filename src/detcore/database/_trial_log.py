"""The output of a trial's workers: lines in a file of the trial's folder."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from detcore._records import LogLine
from detcore.database._line_file import LineFile

__all__ = ["TrialLog", "read_log_page", "read_trial_log"]

_NAME = "log.jsonl"
_POLL_S = 0.2


class TrialLog:
    """Appends lines to a trial's log, as a `LineFile` does."""

    def __init__(self, trial_dir: Path, run: int) -> None:
        self._run = run
        self._file = LineFile(trial_dir / _NAME)

    def append(self, stream: str, text: str, *, rank: int = 0) -> None:
        """Add a line; see `LogLine`."""
        line = LogLine(time.time(), self._run, rank, stream, text)
        self._file.append(json.dumps(dataclasses.asdict(line)).encode())

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def read_log_page(
    trial_dir: Path, position: int = 0, *, limit: int | None = None
) -> tuple[list[LogLine], int]:
    """Return lines of a trial's log from a place on, and the place behind them.

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


def read_trial_log(
    trial_dir: Path, *, follow: bool = False, is_over: Callable[[], bool] = lambda: True
) -> Iterator[LogLine]:
    """Yield the lines of a trial's log, oldest first; none if there is no log.

    Args:
        trial_dir: The trial's folder.
        follow: Whether to wait for more at its end.
        is_over: Asked now and then while following; True ends it when all lines are out.
    """
    position = 0
    while True:
        ends = not follow or is_over()  # asked before reading: lines written until then are read
        lines, position = read_log_page(trial_dir, position)
        yield from lines
        if ends:
            return
        time.sleep(_POLL_S)


def _parse(line: bytes) -> Iterator[LogLine]:
    try:
        yield LogLine(**json.loads(line))
    except (ValueError, TypeError):
        return  # cut by a crash of the machine
