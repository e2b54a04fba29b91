"""Read the frames of the ledgers and step digests that `detcore.data` writes."""

from __future__ import annotations

import dataclasses
import json
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from detcore.data import FrameKind
from detcore.errors import LedgerError

_MAGIC = b"DLG1"
_FORMAT_VERSION = 1
_LEDGER_ADVICE = "Nothing can be proved from this ledger. Train again with data_ledger: true."
# magic, kind, 3 bytes of padding, body size, step, epoch, CRC of the body, CRC of all this
_HEAD = struct.Struct("<4sB3xQqqII")


@dataclasses.dataclass(frozen=True, slots=True)
class Frame:
    """A frame in a file: the fields of its head, and its body, which is not copied.

    Attributes:
        kind: The content of the body.
        step: The step that it belongs to.
        epoch: Pass over the data, from 0; 0 in files of step digests.
        body: A part of the file's content.
        id_bytes: Length of each of the record ids in it, if it has any.
    """

    kind: FrameKind
    step: int
    epoch: int
    body: memoryview
    id_bytes: int = 8


def scan_frames(
    path: Path, content: memoryview, *, advice: str = _LEDGER_ADVICE
) -> Iterator[Frame]:
    """Iterate over the frames of a ledger or of step digests, and check each.

    A torn last frame is left out: its process was killed while it wrote the frame.

    Args:
        path: The file, for messages.
        content: Its content.
        advice: The last line of the message about damage: the remedy.

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
        yield Frame(FrameKind(kind), step, epoch, body)
        offset += _HEAD.size + size


def _check_torn_head(path: Path, offset: int, head: memoryview, advice: str) -> None:
    if bytes(head[: len(_MAGIC)]) != _MAGIC[: len(head)]:
        raise _damaged(path, offset, "the bytes there are not the beginning of a frame", advice)


def read_header(path: Path, frame: Frame, what: str) -> dict[str, Any]:
    """Return the fields in the first frame of a file.

    Args:
        path: The file, for messages.
        frame: The frame.
        what: The kind of the file, for messages.

    Raises:
        LedgerError: If another version wrote it, or another program.
    """
    fields: Any = json.loads(bytes(frame.body)) if frame.kind is FrameKind.HEADER else None
    if not isinstance(fields, dict) or fields.pop("format", None) != _FORMAT_VERSION:
        raise LedgerError(
            f"{path} is not a {what} that this detcore-replay reads.\n"
            "It was written by another version of detcore, or by another program.\n"
            "Read it with the version that wrote it."
        )
    return fields


def _damaged(path: Path, offset: int, why: str, advice: str) -> LedgerError:
    return LedgerError(
        f"{path} is damaged at offset {offset}: {why}.\n"
        "A process that is killed leaves at most a torn end, which is skipped; this is something "
        "else: a failing disk, or a program that changed the file.\n"
        f"{advice}"
    )
