"""Read the frames of the ledgers and step digests that `detcore.data` writes."""

from __future__ import annotations

import dataclasses
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path

from detcore.data import FrameKind
from detcore.errors import LedgerError

_MAGIC = b"DLG1"
_LEDGER_ADVICE = "Nothing can be proved from this ledger. Train again with data_ledger: true."
# magic, kind, 3 bytes of padding, body size, step, epoch, CRC of the body, CRC of all this
_HEAD = struct.Struct("<4sB3xQqqII")


@dataclasses.dataclass(frozen=True, slots=True)
class Frame:
    """A frame in a file: the fields of its head, and the position of its body.

    Attributes:
        kind: The content of the body.
        step: The step that it belongs to.
        epoch: Pass over the data, from 0; 0 in files of step digests.
        offset: Where the body begins in the file, in bytes.
        size_bytes: Length of the body.
        id_bytes: Length of each of the record ids in it, if it has any.
    """

    kind: FrameKind
    step: int
    epoch: int
    offset: int
    size_bytes: int
    id_bytes: int = 8


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
            raise damaged(path, offset, "the head of a frame does not match its checksum", advice)
        body = content[offset + _HEAD.size : offset + _HEAD.size + size]
        if len(body) < size:
            return
        if kind not in iter(FrameKind):
            raise damaged(path, offset, f"there is no frame of kind {kind}", advice)
        if zlib.crc32(body) != body_crc:
            raise damaged(path, offset, "the body of a frame does not match its checksum", advice)
        yield Frame(FrameKind(kind), step, epoch, offset + _HEAD.size, size)
        offset += _HEAD.size + size


def _check_torn_head(path: Path, offset: int, head: memoryview, advice: str) -> None:
    if bytes(head[: len(_MAGIC)]) != _MAGIC[: len(head)]:
        raise damaged(path, offset, "the bytes there are not the beginning of a frame", advice)


def damaged(path: Path, offset: int, why: str, advice: str = _LEDGER_ADVICE) -> LedgerError:
    """Return the error on a damaged file."""
    return LedgerError(
        f"{path} is damaged at offset {offset}: {why}.\n"
        "A process that is killed leaves at most a torn end, which is skipped; this is something "
        "else: a failing disk, or a program that changed the file.\n"
        f"{advice}"
    )
