"""The event log: where a report is safe the moment it is made."""

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
    event_line,
    header_line,
    read_header,
)
from detcore.log.reading import event_log_path, read_event_log

# A reader that looks whether a process has the log open locks it for a moment.
_PROBED_S = 1.0
_POLL_INTERVAL_S = 0.005
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class EventLog:
    """The records of one run of a trial, in a file that only grows.

    When `append` returns, the record is with the kernel: it survives the death of the process,
    though not of the machine. No database is touched, so nothing there can hold up training;
    the followers of the log move the records over.

    `append` may be called from any thread. One process at a time may have a log open; a forked
    child must not use it.
    """

    def __init__(self, path: Path, *, trial_id: int, run_id: int) -> None:
        """Open an event log, or create it with its folder.

        A line that a killed process left unfinished is cut off.

        Args:
            path: The file.
            trial_id: The trial.
            run_id: The run of it.

        Raises:
            DatabaseError: If another process has it open, or it belongs to another run.
            StorageFullError: If there is no room for its first line.
        """
        self._path = Path(path)
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._torn_at: int | None = None
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            self._claim()
            self._seq = self._continue(trial_id, run_id)
        except BaseException:
            os.close(self._fd)
            raise

    @property
    def path(self) -> Path:
        """The file."""
        return self._path

    @property
    def is_empty(self) -> bool:
        """Whether it has no record yet."""
        return self._seq == 0

    def append(self, kind: str, payload: object) -> int:
        """Add a record.

        Args:
            kind: "training" and "validation" are metrics: their payload has "steps_completed",
                "metrics" and, where known, "batch_metrics" and "n_records". Other kinds are kept
                as events.
            payload: A JSON value; NumPy scalars and arrays, NaN and the infinities are fine.

        Returns:
            Its sequence number, from 1 and rising over all processes that open this event log.

        Raises:
            StorageFullError: If there is no room. The event log stays usable.
            DatabaseError: If the event log is closed, or was opened by another process.
            TypeError: If the payload is not JSON.
        """
        if os.getpid() != self._pid:
            raise DatabaseError(
                f"the event log {self._path} was opened by process {self._pid}, and this is "
                f"{os.getpid()}.\nOnly the process that opened it may report."
            )
        with self._lock:
            if self._fd < 0:
                raise DatabaseError(f"the event log {self._path} is closed; nothing was reported")
            # Taken before the write: a signal handler that raises must not make it used twice.
            self._seq += 1
            seq = self._seq
            line = event_line(seq, kind, time.time(), payload)
            self._write(line)
        return seq

    def close(self) -> None:
        """Close the file. Calling it again is fine."""
        with self._lock:
            if self._fd >= 0:
                os.close(self._fd)
                self._fd = -1

    def abandon(self) -> None:
        """Close the file in a forked child, which may outlive this process with its lock."""
        # Without `_lock`, which a thread may have held that the child does not have.
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> EventLog:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _claim(self) -> None:
        deadline = time.monotonic() + _PROBED_S
        while True:
            try:
                fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                if time.monotonic() < deadline:  # a reader looks whether a process has it
                    time.sleep(_POLL_INTERVAL_S)
                    continue
            raise DatabaseError(
                f"the event log {self._path} is in use by another process.\n"
                "Two processes that report for the same run would mix up its records.\n"
                "End the other one first, or start the trial again, which gives it a new run."
            )

    def _continue(self, trial_id: int, run_id: int) -> int:
        """Make the file end with a whole line; return the last sequence number."""
        header = None
        if os.fstat(self._fd).st_size:
            with open(self._fd, "rb", closefd=False) as file:
                header = read_header(file, self._path)
            if header is None:  # killed in its first line
                os.ftruncate(self._fd, 0)
        if header is None:
            self._write(header_line(trial_id, run_id))
            return 0
        if (header.trial_id, header.run_id) != (trial_id, run_id):
            raise DatabaseError(
                f"the event log {self._path} belongs to trial {header.trial_id}, "
                f"run {header.run_id}, not to trial {trial_id}, run {run_id}."
            )
        return self._cut_tail(header.lines_at)

    def _cut_tail(self, lines_at: int) -> int:
        """Cut off an unfinished line; return the sequence number of the last whole record."""
        seq, end = 0, lines_at
        while (part := read_event_log(self._path, end, is_over=True)).lines:
            for record in part.parse():
                if isinstance(record, EventLine):
                    seq = record.seq
            end = part.end
        if end < os.fstat(self._fd).st_size:
            os.ftruncate(self._fd, end)
        return seq

    def _write(self, line: bytes) -> None:
        if self._torn_at is not None:
            os.ftruncate(self._fd, self._torn_at)
            self._torn_at = None
        try:
            written = os.write(self._fd, line)
        except OSError as error:
            if error.errno in _FULL:
                raise self._full(len(line)) from error
            raise
        if written < len(line):
            # No room for all of it. If cutting it off fails, too, the next call does that first.
            self._torn_at = os.fstat(self._fd).st_size - written
            os.ftruncate(self._fd, self._torn_at)
            self._torn_at = None
            raise self._full(len(line))

    def _full(self, size_bytes: int) -> StorageFullError:
        room = os.fstatvfs(self._fd)
        missing = max(1, size_bytes - room.f_bavail * room.f_frsize)
        return StorageFullError(
            f"no room for a report of {size_bytes} bytes in {self._path} (at least {missing} bytes "
            "are missing).\n"
            "Reports are written here before training continues, so that none is lost.\n"
            f"Free some space on that disk: df -h {self._path.parent}",
            missing_bytes=missing,
        )


def open_log(info: TrialInfo) -> EventLog:
    """Open the log of a run of a trial, or create it with its folder; see `EventLog`."""
    path = event_log_path(Path(info.trial_dir), info.run_id)
    return EventLog(path, trial_id=info.trial_id, run_id=info.run_id)
