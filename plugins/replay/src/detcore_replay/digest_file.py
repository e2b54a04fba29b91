"""Read the digests of a trial's steps, which `detcore.data.StepDigests` writes."""

from __future__ import annotations

import dataclasses
import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from detcore.data import FrameKind
from detcore.errors import LedgerError
from detcore_replay.frames import scan_frames

_ADVICE = "Remove the file to compare the run by replays alone."
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
            frames = _read_frames(path)
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


def _read_frames(path: Path) -> list[tuple[FrameKind, int, bytes]]:
    """Return the kind, step and body of each frame."""
    content = path.read_bytes()
    return [
        (frame.kind, frame.step, content[frame.offset : frame.offset + frame.size_bytes])
        for frame in scan_frames(path, memoryview(content), advice=_ADVICE)
    ]


def _facts(path: Path, frame: tuple[FrameKind, int, bytes]) -> dict[str, Any]:
    kind, _, body = frame
    facts: Any = json.loads(body) if kind is FrameKind.HEADER else None
    if not isinstance(facts, dict) or facts.get("format") != _FORMAT_VERSION:
        raise LedgerError(
            f"{path} is not a file of step digests that this detcore-replay reads.\n"
            "It was written by another version of detcore, or by another program.\n"
            "Compare the runs with the version that wrote it."
        )
    return facts


def _collect(
    frames: list[tuple[FrameKind, int, bytes]],
    steps: dict[int, tuple[int, int, int]],
    states: dict[int, dict[str, int]],
) -> None:
    names: list[str] = []
    for kind, frame_step, body in frames:
        if kind is FrameKind.NAMES:
            names = json.loads(body)
        elif kind is FrameKind.STATE:
            values = struct.unpack(f"<{len(names)}Q", body)
            states[frame_step] = dict(zip(names, values, strict=True))
        elif kind is FrameKind.DIGESTS:
            for step, *row in _ROW.iter_unpack(body):
                known = steps.get(step, (0, 0, 0))
                steps[step] = (row[0] or known[0], row[1] or known[1], row[2] or known[2])
