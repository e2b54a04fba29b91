"""Lines of a trial's log with their levels, read from the end, and the last traceback in them."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from detcore.records import read_output_log

if TYPE_CHECKING:
    from detcore.records import LogLine, TrialRecord


LEVELS = ("debug", "info", "warning", "error")
_TAIL_LINES = 200
_CHUNK_BYTES = 128 * 1024
_MAX_CHUNKS = 64
_ENOUGH = 300
_BATCH = 256
_MAX_TRACEBACK = 200
_MAX_MESSAGE = 20
_LETTERS = {"D": "debug", "I": "info", "W": "warning", "E": "error", "F": "error"}
_WORDS = {"WARN": "warning", "CRITICAL": "error", "FATAL": "error"}
# The level is near the beginning: as a word, as a letter of glog or TensorFlow, or as a warning.
_WORD = re.compile(r"\b(DEBUG|INFO|WARNING|WARN|ERROR|CRITICAL|FATAL)\b")
_LETTER = re.compile(r"(?:\d{4}-\d\d-\d\d \S{1,20} )?([DIWEF])(?:\d{4})? \S")
_WARNING = re.compile(r"(?:\S{1,200}:\d+: )?\w{0,60}Warning: ")
_NEAR = 60
_BEGIN = re.compile(r"\s*(?:\S+: )?Traceback \(")
_LINK = re.compile(r"which led to:|During handling of the above|The above exception was the direct")
_FRAME = re.compile(r'\s*File "(?P<path>[^"]+)", line \d+')


@dataclasses.dataclass(frozen=True, slots=True)
class ShownLine:
    """A line and its level; `level` is None if the line does not say one."""

    line: LogLine
    level: str | None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Traceback:
    """The last error that a trial printed.

    Attributes:
        own: The frames of the user's code and the message.
        whole: All of it; the same as `own` if nothing is left out.
    """

    own: str
    whole: str


def read_tail(trial: TrialRecord) -> list[ShownLine]:
    """Return the last lines that a trial's workers printed, without reading all of a long log."""
    end = _size(trial)
    return _levels(_between(trial, max(0, end - _CHUNK_BYTES), end))[-_TAIL_LINES:]


def read_back(
    trial: TrialRecord, *, before: int | None, find: str, level: str
) -> tuple[list[ShownLine], int]:
    """Return matching lines of a log that come before a place, oldest first.

    It stops after some hundreds of lines, or after 8 MiB.

    Args:
        trial: The trial.
        before: Where they end, in bytes; None: at the end of the log.
        find: Text that they contain, in any case; "": any.
        level: The lowest level of `LEVELS`; "": any line.

    Returns:
        The lines, and where the part that was read begins: 0 if nothing comes before it.
    """
    end = _size(trial)
    start = end if before is None else min(before, end)
    wanted = LEVELS[LEVELS.index(level) :] if level else ()
    text = find.casefold()
    found: list[ShownLine] = []
    for _ in range(_MAX_CHUNKS):
        if not start or len(found) >= _ENOUGH:
            break
        stop, start = start, max(0, start - _CHUNK_BYTES)
        found[:0] = [
            shown
            for shown in _levels(_between(trial, start, stop))
            if (not level or shown.level in wanted) and text in shown.line.text.casefold()
        ]
    return found, start


def last_traceback(lines: Sequence[ShownLine], model_dir: str) -> Traceback | None:
    """Return the last traceback of a log, or None.

    Args:
        lines: The lines.
        model_dir: Folder of the user's code.
    """
    block: list[str] = []
    last: LogLine | None = None
    is_open = False
    num_after = 0
    for shown in lines:
        line = shown.line
        begins = _BEGIN.match(line.text) is not None
        if begins and not (is_open and _goes_with(last, line)):
            block, last, is_open, num_after = [line.text], line, True, 0
        elif is_open and _goes_with(last, line):
            # A worker prints nothing after its own report of an error, whose message may be long.
            num_after += not (begins or _is_inside(block, line.text))
            is_open = num_after <= (_MAX_MESSAGE if "(your code" in block[0] else 0)
            if is_open:
                block.append(line.text)
    block = block[-_MAX_TRACEBACK:]
    while block and not block[-1].strip():
        block.pop()
    if not block:
        return None
    own = block if "(your code" in block[0] else _own(block, Path(model_dir))
    return Traceback(own="\n".join(own), whole="\n".join(block))


def _goes_with(last: LogLine | None, line: LogLine) -> bool:
    return last is not None and (last.rank, last.run, last.stream) == (
        line.rank, line.run, line.stream,
    )  # fmt: skip


def _is_inside(block: Sequence[str], text: str) -> bool:
    """Return whether a line belongs to a traceback: until the message, and between two of them."""
    before = next((line for line in reversed(block) if line.strip()), "")
    return (
        not text.strip()
        or text[0].isspace()
        or before[:1].isspace()  # the message
        or _BEGIN.match(before) is not None
        or _LINK.match(text) is not None
    )


def _own(block: Sequence[str], model_dir: Path) -> list[str]:
    """Return a traceback without the frames of other code; all of it if no frame is the user's."""
    kept: list[str] = []
    num_left_out, is_kept, has_own = 0, True, False
    for text in block:
        frame = _FRAME.match(text)
        if frame is not None:
            path = Path(frame["path"])
            is_kept = (
                not path.is_absolute() or path.is_relative_to(model_dir)
            ) and "site-packages" not in path.parts
            has_own |= is_kept
            num_left_out += not is_kept
        elif not text[:1].isspace():
            is_kept = True
        if is_kept:
            kept.append(text)
    if not has_own or not num_left_out:
        return list(block)
    return kept


def _levels(lines: Sequence[LogLine]) -> list[ShownLine]:
    """Return lines with their levels; those of a traceback are errors."""
    shown = []
    inside: dict[tuple[int, str], list[str]] = {}
    for line in lines:
        key = (line.rank, line.stream)
        if _BEGIN.match(line.text):
            inside[key] = [line.text]
        elif key in inside and _is_inside(inside[key], line.text):
            inside[key] = [line.text] if line.text.strip() else inside[key]
        else:
            inside.pop(key, None)
        shown.append(ShownLine(line, "error" if key in inside else _level(line.text)))
    return shown


def _level(text: str) -> str | None:
    word = _WORD.search(text[:_NEAR])
    if word is not None:
        return _WORDS.get(word[1], word[1].lower())
    letter = _LETTER.match(text)
    if letter is not None and (letter[0][0].isdigit() or letter[0][1].isdigit()):
        return _LETTERS[letter[1]]
    return "warning" if _WARNING.match(text) else None


def _size(trial: TrialRecord) -> int:
    """Return the size of a trial's log; 0 if it is not on this machine."""
    if trial.trial_dir is None:
        return 0
    try:
        return sum(path.stat().st_size for path in Path(trial.trial_dir).glob("log.jsonl"))
    except OSError:
        return 0


def _between(trial: TrialRecord, start: int, end: int) -> list[LogLine]:
    """Return the lines that begin in a range of bytes, but the one that it begins inside of."""
    lines: list[LogLine] = []
    folder = Path(trial.trial_dir or "")
    limit = _BATCH
    try:
        while start < end:
            found, after = read_output_log(folder, start, limit=limit)
            if after > end and limit > 1:  # the rest belongs to the part behind
                limit //= 2
                continue
            if after == start:
                break
            lines += found
            start = after
    except OSError:
        return []
    return lines
