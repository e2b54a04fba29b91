"""Copy the log of a trial to the runner from a machine without a shared file system."""

from __future__ import annotations

import contextlib
import fcntl
import os
from pathlib import Path

from detcore.contract.errors import WorkerError
from detcore.contract.values import TrialInfo
from detcore.log.events import CheckpointCommitted
from detcore.log.lines import EventLogDamagedError
from detcore.log.reading import event_log_path, read_event_lines, read_event_log

_MAX_HEADER_BYTES = 4096
_MAX_DURATIONS_BYTES = 8 << 20


def read_log_header(info: TrialInfo) -> bytes:
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
        raise WorkerError(f"the log of trial {info.trial_id} is missing: {path}")
    return line


def read_save_durations(info: TrialInfo, *, run_id: int) -> list[float]:
    """Return the seconds that each save of a trial's run took, 0 if unknown; empty without a log.

    Only the end of a long log is read.

    Args:
        info: The trial.
        run_id: One of its runs.
    """
    path = event_log_path(Path(info.trial_dir), run_id)
    with contextlib.suppress(FileNotFoundError, EventLogDamagedError):
        start = max(0, path.stat().st_size - _MAX_DURATIONS_BYTES)
        events = [line.event for line in read_event_lines(path, start)]
        return [event.total_s or 0.0 for event in events if isinstance(event, CheckpointCommitted)]
    return []


class LogSource:
    """Reads a log on the machine of rank 0, unless the runner sees the same file.

    Create it before the worker starts: on a machine without the runner's file it creates the log.

    Args:
        info: The trial, with directories of this machine.
        header: The result of the runner's `read_log_header`.
        start: Byte from which to read, if this log is known not to be the runner's.

    Raises:
        OSError: If the log cannot be created.
    """

    def __init__(self, info: TrialInfo, header: bytes, *, start: int | None = None) -> None:
        self._path = event_log_path(Path(info.trial_dir), info.run_id)
        self._offset = len(header) if start is None else start
        exists = self._first_line() == header
        self.is_shared = exists and start is None
        if not exists:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._path.write_bytes(header)

    def read(self, *, is_over: bool = False) -> tuple[int, bytes]:
        """Return the offset of the new lines, and the lines (empty if there are no new lines).

        Args:
            is_over: Whether the worker has exited.
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
    """The runner's copy of a log that another machine writes.

    Until it is closed, it holds the lock that marks the log as being written.

    Args:
        info: The trial; the runner has created the log.
    """

    def __init__(self, info: TrialInfo) -> None:
        path = event_log_path(Path(info.trial_dir), info.run_id)
        self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
        fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def append(self, start: int, lines: bytes) -> None:
        """Append lines that start at a byte offset of the log, and skip lines that it has already.

        Raises:
            WorkerError: If earlier lines are missing.
            OSError: If the disk is full.
        """
        size = self.size_bytes
        if start > size:
            raise WorkerError(f"the log of a trial has {size} bytes here, and continues at {start}")
        remaining = lines[size - start :]
        while remaining:
            remaining = remaining[os.write(self._fd, remaining) :]

    @property
    def size_bytes(self) -> int:
        """Size of the copy, at which the next lines start."""
        return os.fstat(self._fd).st_size

    def close(self) -> None:
        """Release the log and its lock."""
        os.close(self._fd)
