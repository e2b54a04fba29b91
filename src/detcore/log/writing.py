"""Write the event log, where a report is safe as soon as it is appended."""

from __future__ import annotations

import errno
import fcntl
import os
import threading
import time
from pathlib import Path

from detcore.contract.errors import DatabaseError, StorageFullError
from detcore.contract.values import TrialInfo
from detcore.log.lines import (
    EventLine,
    make_event_line,
    make_header_line,
    read_header,
)
from detcore.log.reading import event_log_path, read_event_log

# A reader that checks whether the log is open locks it for a moment.
_LOCK_TIMEOUT_S = 1.0
_POLL_INTERVAL_S = 0.005
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class EventLog:
    """The records of one run of a trial, in a file that only grows.

    When `append` returns, the kernel has the record. It survives the death of the process, but not
    of the machine. `append` uses no database, so a database cannot delay training. Followers of the
    log copy the records to the database.

    `append` may be called from any thread. Only one process at a time may have a log open, and a
    forked child must not use it.
    """

    def __init__(self, path: Path, *, trial_id: int, run_id: int) -> None:
        """Open an event log, or create it with its directory.

        If a killed process left an unfinished line, the line is removed.

        Args:
            path: The file.
            trial_id: The trial.
            run_id: The run of the trial.

        Raises:
            DatabaseError: If another process has the log open, or it belongs to a different run.
            StorageFullError: If the disk is full.
        """
        self._path = Path(path)
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._torn_at: int | None = None
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            self._lock_file()
            self._seq = self._find_last_seq(trial_id, run_id)
        except BaseException:
            os.close(self._fd)
            raise

    @property
    def path(self) -> Path:
        """The file."""
        return self._path

    @property
    def is_empty(self) -> bool:
        """Whether the log has no record yet."""
        return self._seq == 0

    def append(self, kind: str, payload: object) -> int:
        """Add a record.

        Args:
            kind: "training" and "validation" are metrics: their payload has "steps_completed",
                "metrics" and, if known, "batch_metrics" and "n_records". Other kinds are events.
            payload: A JSON value, which may contain NumPy scalars and arrays, NaN and infinities.

        Returns:
            The sequence number, ascending from 1 over all processes that open this event log.

        Raises:
            StorageFullError: If the disk is full. The event log stays usable.
            DatabaseError: If the event log is closed, or if another process has opened it.
            TypeError: If the payload is not JSON.
        """
        if os.getpid() != self._pid:
            raise DatabaseError(
                f"the event log {self._path} was opened by process {self._pid}, but this is "
                f"process {os.getpid()}.\nOnly the process that opened it may report."
            )
        with self._lock:
            if self._fd < 0:
                raise DatabaseError(f"the event log {self._path} is closed; nothing was reported")
            # Incremented before the write: a signal handler that raises must not reuse the number.
            self._seq += 1
            seq = self._seq
            line = make_event_line(seq, kind, time.time(), payload)
            self._write_line(line)
        return seq

    def close(self) -> None:
        """Close the file; idempotent."""
        with self._lock:
            if self._fd >= 0:
                os.close(self._fd)
                self._fd = -1

    def abandon(self) -> None:
        """Close the file in a forked child, which would otherwise keep the lock."""
        # Without `_lock`: a thread that does not exist in the child may have held it.
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> EventLog:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _lock_file(self) -> None:
        deadline = time.monotonic() + _LOCK_TIMEOUT_S
        while True:
            try:
                fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                if time.monotonic() < deadline:  # a reader may be checking the lock
                    time.sleep(_POLL_INTERVAL_S)
                    continue
            raise DatabaseError(
                f"the event log {self._path} is in use by another process.\n"
                "Two processes that report for the same run would mix up its records.\n"
                "End the other process first, or start the trial again, which creates a new run."
            )

    def _find_last_seq(self, trial_id: int, run_id: int) -> int:
        """Make the file end with a complete line, and return the last sequence number."""
        header = None
        if os.fstat(self._fd).st_size:
            with open(self._fd, "rb", closefd=False) as file:
                header = read_header(file, self._path)
            if header is None:  # the process was killed in the first line
                os.ftruncate(self._fd, 0)
        if header is None:
            self._write_line(make_header_line(trial_id, run_id))
            return 0
        if (header.trial_id, header.run_id) != (trial_id, run_id):
            raise DatabaseError(
                f"the event log {self._path} belongs to trial {header.trial_id}, "
                f"run {header.run_id}, not to trial {trial_id}, run {run_id}."
            )
        return self._cut_tail(header.lines_at)

    def _cut_tail(self, lines_at: int) -> int:
        """Remove an unfinished line, and return the sequence number of the last record."""
        seq, end = 0, lines_at
        while (part := read_event_log(self._path, end, is_over=True)).lines:
            for record in part.parse_lines():
                if isinstance(record, EventLine):
                    seq = record.seq
            end = part.end
        if end < os.fstat(self._fd).st_size:
            os.ftruncate(self._fd, end)
        return seq

    def _write_line(self, line: bytes) -> None:
        if self._torn_at is not None:
            os.ftruncate(self._fd, self._torn_at)
            self._torn_at = None
        try:
            num_written = os.write(self._fd, line)
        except OSError as error:
            if error.errno in _FULL:
                raise self._make_full_error(len(line)) from error
            raise
        if num_written < len(line):
            # The disk is full. If truncating fails too, the next call truncates first.
            self._torn_at = os.fstat(self._fd).st_size - num_written
            os.ftruncate(self._fd, self._torn_at)
            self._torn_at = None
            raise self._make_full_error(len(line))

    def _make_full_error(self, size_bytes: int) -> StorageFullError:
        file_system = os.fstatvfs(self._fd)
        missing_bytes = max(1, size_bytes - file_system.f_bavail * file_system.f_frsize)
        return StorageFullError(
            f"no space left for a report of {size_bytes} bytes in {self._path} (at least "
            f"{missing_bytes} bytes are missing).\n"
            "Reports are written here before training continues, so that no report is lost.\n"
            f"Free some space on that disk: df -h {self._path.parent}",
            missing_bytes=missing_bytes,
        )


def open_log(info: TrialInfo) -> EventLog:
    """Open the log of a trial's run, or create it with its directory; see `EventLog`."""
    path = event_log_path(Path(info.trial_dir), info.run_id)
    return EventLog(path, trial_id=info.trial_id, run_id=info.run_id)
