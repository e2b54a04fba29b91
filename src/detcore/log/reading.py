"""Read the lines of an event log in order, while its run reports or after it has ended."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator
from pathlib import Path

from detcore.atomic_files import is_file_locked
from detcore.log.lines import (
    EventLine,
    EventLogDamagedError,
    EventLogHeader,
    parse_line,
    read_header,
)

# Small enough to hold a database's write lock and Python's lock only briefly.
_CHUNK_BYTES = 256 * 1024


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class EventLogPart:
    """Complete lines of an event log.

    Attributes:
        header: The first line; None while it is incomplete and there are no further lines.
        start: Byte of the file where the lines start.
        lines: The lines as in the file, at most about one chunk.
    """

    header: EventLogHeader | None
    start: int
    lines: bytes

    @property
    def end(self) -> int:
        """Byte of the file after the lines."""
        return self.start + len(self.lines)

    def parse_lines(self) -> Iterator[EventLine | int]:
        """Yield each record. For a damaged line, yield the byte after it."""
        end = self.start
        for text in self.lines.splitlines(keepends=True):
            end += len(text)
            yield parse_line(text[:-1], end) or end


def read_event_log(path: Path, start: int = 0, *, is_over: bool = False) -> EventLogPart:
    """Read the complete lines of an event log from a byte on, at most about one chunk.

    Args:
        path: The event log.
        start: Byte after the lines that were read before; 0 = the first record.
        is_over: Whether the writer has closed the file. Otherwise lines with a wrong checksum at
            the end of the file are left for later, because one of them may be half written.

    Returns:
        The lines, which may be empty.

    Raises:
        EventLogDamagedError: If the file is not an event log, or is shorter than `start`.
        FileNotFoundError: If the file does not exist.
    """
    with path.open("rb") as file:
        header = read_header(file, path)
        if header is None:
            return EventLogPart(header=None, start=start, lines=b"")
        size = os.fstat(file.fileno()).st_size
        if size < start:
            raise EventLogDamagedError(
                path,
                f"has {size} bytes, but {start} were read before; it was replaced or truncated",
            )
        start = max(start, header.lines_at)
        file.seek(start)
        data = file.read(_CHUNK_BYTES)
        if not data.endswith(b"\n"):
            data += file.readline()  # a record may be longer than a chunk
    is_all = start + len(data) >= size
    data = data[: data.rfind(b"\n") + 1]
    while is_all and data and not is_over:
        begin = data.rfind(b"\n", 0, -1) + 1
        if parse_line(data[begin:-1]) is not None:
            break
        data = data[:begin]
    return EventLogPart(header=header, start=start, lines=data)


def read_event_lines(path: Path, start: int = 0) -> Iterator[EventLine]:
    """Yield the undamaged records of an event log whose run may still report.

    Args:
        path: The event log.
        start: Byte after the last record that was read before; 0 = the first record.

    Raises:
        EventLogDamagedError: If the file is not an event log, or is shorter than `start`.
        FileNotFoundError: If the file does not exist.
    """
    while (part := read_event_log(path, start)).lines:
        yield from (record for record in part.parse_lines() if isinstance(record, EventLine))
        start = part.end


def event_log_path(trial_dir: Path, run_id: int) -> Path:
    """Return the path of the event log of a run."""
    return Path(trial_dir) / f"events-{run_id}.jsonl"


def event_log_owner(path: Path) -> tuple[int, int] | None:
    """Return the trial and run from the path of an event log, or None for other paths."""
    trial, run = path.parent.name, path.stem.removeprefix("events-")
    return (int(trial), int(run)) if trial.isdigit() and run.isdigit() else None


def is_event_log_in_use(path: Path) -> bool:
    """Whether a process has the event log open for writing."""
    return is_file_locked(path)
