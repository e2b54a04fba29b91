"""Read the digests of a trial's steps, which `detcore.data.StepDigests` writes."""

from __future__ import annotations

import dataclasses
import json
import struct
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from detcore.errors import LedgerError

__all__ = ["DigestedRun", "read_digests"]

# The frames of a ledger: magic, kind, size of the body, step, epoch, CRC of the body, CRC of these.
_HEAD = struct.Struct("<4sB3xQqqII")
_MAGIC = b"DLG1"
_HEADER, _DIGESTS, _NAMES, _STATE = 0, 3, 4, 5
# A step, and the digests of its record ids, its content and its metrics; 0 where not known.
_ROW = struct.Struct("<QQQQ")
_FORMAT_VERSION = 1


@dataclasses.dataclass(frozen=True, slots=True)
class DigestedRun:
    """The digests of a trial, over all of its starts; those of a later start replace earlier ones.

    Attributes:
        facts: Facts about the newest start, by name.
        steps: Digests of record ids, content and metrics by step; 0 where not known.
        states: Digests by tensor name, by step.
    """

    facts: Mapping[str, Any]
    steps: Mapping[int, tuple[int, int, int]]
    states: Mapping[int, Mapping[str, int]]


def read_digests(trial_dir: Path) -> DigestedRun | None:
    """Read the digests of a trial's chief; a torn end is skipped.

    Args:
        trial_dir: Folder of the trial, with its ``digests-<run_id>.bin`` files.

    Returns:
        The digests; None if the folder has none.

    Raises:
        LedgerError: If a file is damaged.
    """
    read = []
    for path in Path(trial_dir).glob("digests-*.bin"):
        if path.stem.count("-") == 1:
            frames = list(_read_frames(path))
            if frames:
                read.append((_facts(path, frames[0]), frames[1:]))
    steps: dict[int, tuple[int, int, int]] = {}
    states: dict[int, dict[str, int]] = {}
    facts: dict[str, Any] = {}
    for facts, frames in sorted(read, key=lambda each: int(each[0]["run_id"])):
        start = int(facts["start_step"])
        steps = {step: row for step, row in steps.items() if step <= start}
        states = {step: state for step, state in states.items() if step <= start}
        _collect(frames, steps, states)
    return DigestedRun(facts, steps, states) if facts else None


def _read_frames(path: Path) -> Iterator[tuple[int, int, bytes]]:
    """Iterate over the kind, step and body of each frame; a torn last one is left out."""
    content, offset = path.read_bytes(), 0
    while offset + _HEAD.size <= len(content):
        head = content[offset : offset + _HEAD.size]
        magic, kind, size, step, _, body_crc, head_crc = _HEAD.unpack(head)
        if magic != _MAGIC or zlib.crc32(head[:-4]) != head_crc:
            raise _damaged(path, offset)
        body = content[offset + _HEAD.size : offset + _HEAD.size + size]
        if len(body) < size:
            return  # the process was killed while it wrote the frame
        if zlib.crc32(body) != body_crc:
            raise _damaged(path, offset)
        yield kind, step, body
        offset += _HEAD.size + size


def _facts(path: Path, frame: tuple[int, int, bytes]) -> dict[str, Any]:
    kind, _, body = frame
    facts: Any = json.loads(body) if kind == _HEADER else None
    if not isinstance(facts, dict) or facts.get("format") != _FORMAT_VERSION:
        raise LedgerError(
            f"{path} is not a file of step digests that this detcore-replay reads.\n"
            "It was written by another version of detcore, or by another program.\n"
            "Compare the runs with the version that wrote it."
        )
    return facts


def _collect(
    frames: list[tuple[int, int, bytes]],
    steps: dict[int, tuple[int, int, int]],
    states: dict[int, dict[str, int]],
) -> None:
    names: list[str] = []
    for kind, frame_step, body in frames:
        if kind == _NAMES:
            names = json.loads(body)
        elif kind == _STATE:
            values = struct.unpack(f"<{len(names)}Q", body)
            states[frame_step] = dict(zip(names, values, strict=True))
        elif kind == _DIGESTS:
            for step, *row in _ROW.iter_unpack(body):
                known = steps.get(step, (0, 0, 0))
                steps[step] = (row[0] or known[0], row[1] or known[1], row[2] or known[2])


def _damaged(path: Path, offset: int) -> LedgerError:
    return LedgerError(
        f"{path} is damaged at offset {offset}: a frame does not match its checksum.\n"
        "A process that is killed leaves at most a torn end, which is skipped; this is a failing "
        "disk, or a program that changed the file.\n"
        "Remove the file to compare the run by replays alone."
    )
