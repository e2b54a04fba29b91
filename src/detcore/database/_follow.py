"""Reading the records of a spool in their order, while its run reports or after it."""

from __future__ import annotations

import dataclasses
import fcntl
import os
from pathlib import Path
from typing import Any

from detcore.database._lines import NotASpoolError, parse_line, read_header
from detcore.errors import DatabaseError

__all__ = ["SpoolPart", "SpooledRecord", "is_spool_in_use", "read_spool", "spool_path"]

_CHUNK_BYTES = 64 * 1024


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SpooledRecord:
    """A record of a spool.

    Attributes:
        seq: Its number in the spool, from 1 and rising.
        kind: "training", "validation", or another word.
        time: When it was reported, in seconds since 1970.
        payload: What was reported.
        end: Byte of the file behind it.
    """

    seq: int
    kind: str
    time: float
    payload: Any
    end: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SpoolPart:
    """Some records of a spool.

    Attributes:
        records: The records, in order.
        damaged: Byte of the file behind each finished line whose checksum is wrong.
        end: Byte of the file behind everything that was read.
    """

    records: tuple[SpooledRecord, ...]
    damaged: tuple[int, ...]
    end: int


def spool_path(trial_dir: Path, run_id: int) -> Path:
    """Return where the spool of a run lies."""
    return Path(trial_dir) / f"spool-{run_id}.jsonl"


def read_spool(path: Path, start: int, *, is_over: bool) -> SpoolPart:
    """Read the finished lines of a spool from a byte on; some of them, if there are many.

    Args:
        path: The spool.
        start: Byte behind what was read before; 0 = the beginning.
        is_over: Whether nobody writes any more; otherwise a last line with a wrong checksum is
            left for later.

    Raises:
        DatabaseError: If the file is not a spool, or shorter than `start`.
        FileNotFoundError: If it is gone.
    """
    with path.open("rb") as file:
        try:
            header = read_header(file, path)
        except NotASpoolError as error:
            raise DatabaseError(f"{error}.\nWhat was reported there cannot be read.") from error
        if header is None:
            return SpoolPart(records=(), damaged=(), end=start)
        size = os.fstat(file.fileno()).st_size
        if size < start:
            raise DatabaseError(
                f"{path} has {size} bytes, but {start} were read before.\n"
                "The file was replaced or cut, and what was reported there cannot be told apart."
            )
        start = start or header.records_at
        file.seek(start)
        data = file.read(_CHUNK_BYTES)
        if not data.endswith(b"\n"):
            data += file.readline()  # a record may be longer than a chunk
    is_all = start + len(data) >= size
    return _parse(data[: data.rfind(b"\n") + 1], start, leave_last=is_all and not is_over)


def _parse(data: bytes, start: int, *, leave_last: bool) -> SpoolPart:
    records: list[SpooledRecord] = []
    damaged: list[int] = []
    end = start
    for text in data.splitlines(keepends=True):
        end += len(text)
        line = parse_line(text[:-1])
        if line is None:
            damaged.append(end)
            continue
        moment = line.reported_at.timestamp()
        records.append(
            SpooledRecord(seq=line.seq, kind=line.kind, time=moment, payload=line.payload, end=end)
        )
    if leave_last:
        # What stands behind the last good record may be a line that is being written.
        end = records[-1].end if records else start
        damaged = [place for place in damaged if place <= end]
    return SpoolPart(records=tuple(records), damaged=tuple(damaged), end=end)


def is_spool_in_use(path: Path) -> bool:
    """Whether a process has the spool open for writing."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False
