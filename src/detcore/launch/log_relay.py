"""Bring the log of a trial to the runner from a machine that does not share its folders."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from detcore.contract.errors import WorkerError
from detcore.contract.values import TrialInfo
from detcore.log.reading import event_log_path, read_event_log

_MAX_HEADER_BYTES = 4096


def log_header(info: TrialInfo) -> bytes:
    """Return the first line of the log that the runner created for a run.

    Raises:
        WorkerError: If the runner has not created it.
    """
    path = event_log_path(Path(info.trial_dir), info.run_id)
    try:
        with path.open("rb") as file:
            line = file.readline(_MAX_HEADER_BYTES)
    except FileNotFoundError:
        line = b""
    if not line.endswith(b"\n"):
        raise WorkerError(f"the log of trial {info.trial_id} is not there: {path}")
    return line


class LogSource:
    """Reads a log on the machine of rank 0, unless the runner sees the very same file.

    Made before the worker starts: on a machine without the runner's file it begins the log.

    Args:
        info: The trial, with folders of this machine.
        header: The result of the runner's `log_header`.

    Raises:
        OSError: If the log cannot be begun.
    """

    def __init__(self, info: TrialInfo, header: bytes) -> None:
        self._path = event_log_path(Path(info.trial_dir), info.run_id)
        self._offset = len(header)
        self.is_shared = self._first_line() == header
        if not self.is_shared:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._path.write_bytes(header)

    def read(self, *, is_over: bool = False) -> tuple[int, bytes]:
        """Return lines that were not returned before, perhaps none, and where they begin.

        Args:
            is_over: Whether the worker has ended.
        """
        if self.is_shared:
            return self._offset, b""
        part = read_event_log(self._path, self._offset, is_over=is_over)
        self._offset = part.end
        return part.start, part.lines

    def _first_line(self) -> bytes:
        try:
            with self._path.open("rb") as file:
                return file.readline(_MAX_HEADER_BYTES)
        except FileNotFoundError:
            return b""


class LogCopy:
    """The runner's copy of a log that is written on another machine.

    Until it is closed, it holds the lock that marks the log as being written.

    Args:
        info: The trial; the runner has created the log.
    """

    def __init__(self, info: TrialInfo) -> None:
        path = event_log_path(Path(info.trial_dir), info.run_id)
        self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
        fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def append(self, start: int, lines: bytes) -> None:
        """Append lines that begin at a byte of the log; known ones are skipped.

        Raises:
            WorkerError: If lines before them are missing.
            OSError: If there is no room.
        """
        size = os.fstat(self._fd).st_size
        if start > size:
            raise WorkerError(f"the log of a trial has {size} bytes here, and continues at {start}")
        rest = lines[size - start :]
        while rest:
            rest = rest[os.write(self._fd, rest) :]

    def close(self) -> None:
        """Release it."""
        os.close(self._fd)
