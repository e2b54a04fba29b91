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
    """A line, its level if it says one, and the number of the traceback that it is in."""

    line: LogLine
    level: str | None
    traceback: int | None = None


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
    last = max((one.traceback or 0 for one in lines), default=0)
    block = [one.line.text for one in lines if last and one.traceback == last]
    block = block[-_MAX_TRACEBACK:]
    while block and not block[-1].strip():
        block.pop()
    if not block:
        return None
    own = block if "(your code" in block[0] else _own(block, Path(model_dir))
    return Traceback(own="\n".join(own), whole="\n".join(block))


def _is_inside(before: str, text: str) -> bool:
    """Return whether a line belongs to a traceback: until the message, and between two of them.

    Args:
        before: The last line of the traceback that is not empty.
        text: The line.
    """
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
    count = 0
    # By stream the number of its traceback, the last line of it, and how many may follow.
    inside: dict[tuple[int, int, str], tuple[int, str, int]] = {}
    for line in lines:
        key, text = (line.rank, line.run, line.stream), line.text
        number, before, left = inside.pop(key, (0, "", 0))
        if _BEGIN.match(text):
            if not number:
                count = number = count + 1
                # A worker prints nothing after its own report of an error: its message may be long.
                left = _MAX_MESSAGE if "(your code" in text else 0
        elif number and not _is_inside(before, text):
            number, left = (number, left - 1) if left else (0, 0)
        if number:
            inside[key] = (number, text if text.strip() else before, left)
        level = "error" if number else _level(text)
        shown.append(ShownLine(line, level, number or None))
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
