"""Define the layout of a ledger file: frames, each with a checksum. Step digests have it, too.

A file is a sequence of frames. A frame is a head of 40 bytes and a body; both have a CRC-32. The
first frame is the header, a JSON object; the others contain record ids as little-endian int64.
Files only ever grow, and only whole frames are passed to the kernel, so a process that is killed
leaves at most one torn frame, at the end.
"""

from __future__ import annotations

import dataclasses
import enum
import json
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from detcore.data._order import Indices
from detcore.errors import LedgerError

__all__ = [
    "Frame",
    "FrameKind",
    "IdKind",
    "LedgerHeader",
    "ids_of",
    "pack_frame",
    "pack_header",
    "pack_ids",
    "read_frames",
    "scan_frames",
]

_MAGIC = b"DLG1"
# magic, kind, 3 bytes of padding, body size, step, epoch, CRC of the body, CRC of all this
_HEAD = struct.Struct("<4sB3xQqqII")
_FORMAT_VERSION = 1
_LEDGER_ADVICE = "Nothing can be proved from this ledger. Train again with data_ledger: true."


class FrameKind(enum.IntEnum):
    """The content of a frame's body."""

    HEADER = 0
    BATCH = 1
    CENSUS = 2
    DIGESTS = 3
    NAMES = 4
    STATE = 5
    LAST_BATCH = 6
    LAST_CONTENT = 7


class IdKind(str, enum.Enum):
    """The kind of the ids in a ledger."""

    RECORD_INDEX = "record index"
    SEQUENCE_ITEM = "item index of a Sequence"
    CONTENT_HASH = "content hash"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class LedgerHeader:
    """The first frame of a ledger file.

    Attributes:
        run_id: Counts the starts of the trial, from 1.
        start_step: Steps of the checkpoint that the run started from; 0 without a checkpoint.
        ids: The kind of the ids.
        num_records: Ids are 0 to ``num_records - 1``; None if unknown, or not indices.
        left_over: Ids that each epoch leaves out on purpose (a dropped last batch).
        rank: Index of the worker that wrote the file.
        world_size: Number of workers that each wrote one.
    """

    run_id: int
    start_step: int
    ids: IdKind = IdKind.RECORD_INDEX
    num_records: int | None = None
    left_over: int = 0
    rank: int = 0
    world_size: int = 1


@dataclasses.dataclass(frozen=True, slots=True)
class Frame:
    """A frame in a file: the fields of its head, and the position of its body.

    Attributes:
        kind: The content of the body.
        step: The step that it belongs to.
        epoch: Pass over the data, from 0; 0 in files of step digests.
        offset: Where the body begins in the file, in bytes.
        size_bytes: Length of the body.
    """

    kind: FrameKind
    step: int
    epoch: int
    offset: int
    size_bytes: int


def pack_header(header: LedgerHeader) -> bytes:
    """Return the first frame of a file."""
    fields = {"format": _FORMAT_VERSION, **dataclasses.asdict(header), "ids": header.ids.value}
    return pack_frame(FrameKind.HEADER, 0, 0, json.dumps(fields).encode())


def pack_ids(kind: FrameKind, step: int, epoch: int, ids: Indices) -> bytes:
    """Return a frame of record ids."""
    return pack_frame(kind, step, epoch, ids.astype("<i8", copy=False).tobytes())


def ids_of(content: memoryview, frame: Frame) -> Indices:
    """Return the ids in the body of a frame, without copying on little-endian machines."""
    body = content[frame.offset : frame.offset + frame.size_bytes]
    return np.frombuffer(body, dtype="<i8").astype(np.int64, copy=False)


def read_frames(path: Path, content: memoryview) -> tuple[LedgerHeader | None, list[Frame]]:
    """Check a file's content and return its header and the frames after it.

    A torn last frame is left out. A file with a torn header has neither header nor frames: its
    process was killed before it had logged anything.

    Raises:
        LedgerError: If the file is damaged anywhere else, with its name and the offset.
    """
    frames = list(scan_frames(path, content))
    if not frames:
        return None, []
    first = frames[0]
    if first.kind is not FrameKind.HEADER:
        raise _damaged(path, 0, "it does not begin with a header")
    return _parse_header(path, content, first), frames[1:]


def pack_frame(kind: FrameKind, step: int, epoch: int, body: bytes) -> bytes:
    """Return a frame."""
    head = _HEAD.pack(_MAGIC, kind, len(body), step, epoch, zlib.crc32(body), 0)[:-4]
    return b"".join((head, zlib.crc32(head).to_bytes(4, "little"), body))


def scan_frames(
    path: Path, content: memoryview, *, advice: str = _LEDGER_ADVICE
) -> Iterator[Frame]:
    """Iterate over the frames of a ledger or of step digests, and check each.

    A torn last frame is left out: its process was killed while it wrote the frame.

    Args:
        path: The file, for messages.
        content: Its content.
        advice: The last line of the message about damage: what to do.

    Raises:
        LedgerError: If the file is damaged anywhere else, with its name and the offset.
    """
    offset = 0
    while offset < len(content):
        head = content[offset : offset + _HEAD.size]
        if len(head) < _HEAD.size:
            _check_torn_head(path, offset, head, advice)
            return
        magic, kind, size, step, epoch, body_crc, head_crc = _HEAD.unpack(head)
        if magic != _MAGIC or zlib.crc32(head[:-4]) != head_crc:
            raise _damaged(path, offset, "the head of a frame does not match its checksum", advice)
        body = content[offset + _HEAD.size : offset + _HEAD.size + size]
        if len(body) < size:
            return
        if kind not in iter(FrameKind):
            raise _damaged(path, offset, f"there is no frame of kind {kind}", advice)
        if zlib.crc32(body) != body_crc:
            raise _damaged(path, offset, "the body of a frame does not match its checksum", advice)
        yield Frame(FrameKind(kind), step, epoch, offset + _HEAD.size, size)
        offset += _HEAD.size + size


def _check_torn_head(path: Path, offset: int, head: memoryview, advice: str) -> None:
    if bytes(head[: len(_MAGIC)]) != _MAGIC[: len(head)]:
        raise _damaged(path, offset, "the bytes there are not the beginning of a frame", advice)


def _parse_header(path: Path, content: memoryview, frame: Frame) -> LedgerHeader:
    fields: dict[str, Any] = json.loads(
        bytes(content[frame.offset : frame.offset + frame.size_bytes])
    )
    version = fields.pop("format", None)
    if version != _FORMAT_VERSION:
        raise LedgerError(
            f"{path} is a ledger of format {version!r}; this detcore reads {_FORMAT_VERSION}.\n"
            "It was written by another version of detcore.\n"
            "Verify it with the version that wrote it."
        )
    fields["ids"] = IdKind(fields["ids"])
    return LedgerHeader(**fields)


def _damaged(path: Path, offset: int, why: str, advice: str = _LEDGER_ADVICE) -> LedgerError:
    return LedgerError(
        f"{path} is damaged at offset {offset}: {why}.\n"
        "A process that is killed leaves at most a torn end, which is skipped; this is something "
        "else: a failing disk, or a program that changed the file.\n"
        f"{advice}"
    )
