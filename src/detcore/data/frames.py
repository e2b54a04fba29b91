"""Read the frames of the ledgers and step digests that `detcore.data` writes."""

from __future__ import annotations

import dataclasses
import json
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from detcore.contract.errors import LedgerError
from detcore.data.ledger import FrameKind

_MAGIC = b"DLG1"
_FORMAT_VERSION = 1
_LEDGER_ADVICE = "This ledger cannot prove anything. Train again with data_ledger: true."
# magic, kind, 3 bytes of padding, body size, step, epoch, CRC of the body, CRC of the head
_HEAD = struct.Struct("<4sB3xQqqII")


@dataclasses.dataclass(frozen=True, slots=True)
class Frame:
    """A frame in a file: the fields of its head, and its body without a copy.

    Attributes:
        kind: The content of the body.
        step: The step of the frame.
        epoch: Pass over the data, from 0; 0 in files of step digests.
        body: A part of the file's content.
        id_bytes: Length of each record id, if the frame has record ids.
    """

    kind: FrameKind
    step: int
    epoch: int
    body: memoryview
    id_bytes: int = 8


def scan_frames(
    path: Path, content: memoryview, *, advice: str = _LEDGER_ADVICE
) -> Iterator[Frame]:
    """Yield the checked frames of a ledger or of step digests.

    A truncated last frame is omitted: its process was killed while writing.

    Args:
        path: The file, for messages.
        content: Its content.
        advice: The remedy, as last line of the message about damage.

    Raises:
        LedgerError: If the file is damaged elsewhere. The message has its name and the offset.
    """
    offset = 0
    while offset < len(content):
        head = content[offset : offset + _HEAD.size]
        if len(head) < _HEAD.size:
            _check_torn_head(path, offset, head, advice)
            return
        magic, kind, size, step, epoch, body_crc, head_crc = _HEAD.unpack(head)
        if magic != _MAGIC or zlib.crc32(head[:-4]) != head_crc:
            raise _damage_error(
                path, offset, "the head of a frame does not match its checksum", advice
            )
        body = content[offset + _HEAD.size : offset + _HEAD.size + size]
        if len(body) < size:
            return
        if kind not in iter(FrameKind):
            raise _damage_error(path, offset, f"unknown frame kind {kind}", advice)
        if zlib.crc32(body) != body_crc:
            raise _damage_error(
                path, offset, "the body of a frame does not match its checksum", advice
            )
        yield Frame(FrameKind(kind), step, epoch, body)
        offset += _HEAD.size + size


def _check_torn_head(path: Path, offset: int, head: memoryview, advice: str) -> None:
    if bytes(head[: len(_MAGIC)]) != _MAGIC[: len(head)]:
        raise _damage_error(path, offset, "the bytes are not the start of a frame", advice)


def read_header(path: Path, frame: Frame, what: str) -> dict[str, Any]:
    """Return the fields in the first frame of a file.

    Args:
        path: The file, for messages.
        frame: The frame.
        what: The kind of the file, for messages.

    Raises:
        LedgerError: If another version or another program wrote the file.
    """
    fields: Any = json.loads(bytes(frame.body)) if frame.kind is FrameKind.HEADER else None
    if not isinstance(fields, dict) or fields.pop("format", None) != _FORMAT_VERSION:
        raise LedgerError(
            f"{path} is not a {what} that this release of detcore reads.\n"
            "It was written by another version of detcore, or by another program.\n"
            "Read it with the version that wrote it."
        )
    return fields


def _damage_error(path: Path, offset: int, why: str, advice: str) -> LedgerError:
    return LedgerError(
        f"{path} is damaged at offset {offset}: {why}.\n"
        "A killed process leaves at most a truncated end, which is skipped. The cause here is a "
        "failing disk, or a program that changed the file.\n"
        f"{advice}"
    )
