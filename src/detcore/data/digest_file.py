"""Read the digests of a trial's steps, which `detcore.data.StepDigests` writes."""

from __future__ import annotations

import dataclasses
import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from detcore.data.frames import Frame, read_header, scan_frames
from detcore.data.ledger import FrameKind

_ADVICE = "Remove the file to compare the run by replays alone."
# A step, and the digests of its record ids, content and metrics; 0 if unknown.
_ROW = struct.Struct("<QQQQ")


@dataclasses.dataclass(frozen=True, slots=True)
class DigestedRun:
    """The digests of a trial over all starts.

    Attributes:
        facts: Properties of the newest start, by name.
        steps: Digests of record ids, content and metrics by step; 0 if unknown.
        states: Digests by tensor name, by step.
    """

    facts: Mapping[str, Any]
    steps: Mapping[int, tuple[int, int, int]]
    states: Mapping[int, Mapping[str, int]]


def read_digests(trial_dir: Path, *, rank: int = 0, first: bool = False) -> DigestedRun | None:
    """Read the digests of one worker of a trial; a truncated end is skipped.

    Args:
        trial_dir: Directory of the trial, with ``digests-<run_id>.bin`` files.
        rank: The worker.
        first: Whether the first digests of a step are returned if several starts have trained it.
            Otherwise the last, which lead to the trial's present state, are returned.

    Returns:
        The digests, or None if the directory has no digests.

    Raises:
        LedgerError: If a file is damaged.
    """
    starts = []
    for path in Path(trial_dir).glob("digests-*.bin"):
        _, _, *worker = path.stem.split("-")
        if worker == ([str(rank)] if rank else []):
            frames = list(scan_frames(path, memoryview(path.read_bytes()), advice=_ADVICE))
            if frames:
                starts.append((read_header(path, frames[0], "file of step digests"), frames[1:]))
    steps: dict[int, tuple[int, int, int]] = {}
    states: dict[int, dict[str, int]] = {}
    facts: dict[str, Any] = {}
    for facts, frames in sorted(starts, key=lambda start: int(start[0]["run_id"])):
        start = int(facts["start_step"])
        later_steps, later_states = steps, states
        steps = {step: row for step, row in steps.items() if step <= start}
        states = {step: state for step, state in states.items() if step <= start}
        _collect_digests(frames, steps, states)
        if first:
            steps, states = {**steps, **later_steps}, {**states, **later_states}
    return DigestedRun(facts, steps, states) if facts else None


def _collect_digests(
    frames: list[Frame],
    steps: dict[int, tuple[int, int, int]],
    states: dict[int, dict[str, int]],
) -> None:
    names: list[str] = []
    for frame in frames:
        if frame.kind is FrameKind.NAMES:
            names = json.loads(bytes(frame.body))
        elif frame.kind is FrameKind.STATE:
            values = struct.unpack(f"<{len(names)}Q", frame.body)
            states[frame.step] = dict(zip(names, values, strict=True))
        elif frame.kind is FrameKind.DIGESTS:
            for step, *row in _ROW.iter_unpack(frame.body):
                previous = steps.get(step, (0, 0, 0))
                steps[step] = (row[0] or previous[0], row[1] or previous[1], row[2] or previous[2])
