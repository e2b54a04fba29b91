"""Log lines of a trial with levels, read from the end, and the last traceback."""

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
# The level is near the start: a word, a letter in the style of glog, or a Python warning.
_WORD = re.compile(r"\b(DEBUG|INFO|WARNING|WARN|ERROR|CRITICAL|FATAL)\b")
_LETTER = re.compile(r"(?:\d{4}-\d\d-\d\d \S{1,20} )?([DIWEF])(?:\d{4})? \S")
_WARNING = re.compile(r"(?:\S{1,200}:\d+: )?\w{0,60}Warning: ")
_NEAR = 60
_BEGIN = re.compile(r"\s*(?:\S+: )?Traceback \(")
_LINK = re.compile(r"which led to:|During handling of the above|The above exception was the direct")
_FRAME = re.compile(r'\s*File "(?P<path>[^"]+)", line \d+')


@dataclasses.dataclass(frozen=True, slots=True)
class ShownLine:
    """A line with its level, if any, and the number of its traceback, if any."""

    line: LogLine
    level: str | None
    traceback: int | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Traceback:
    """Last traceback that a trial printed.

    Attributes:
        user_part: Frames of the user's code, and the message.
        full_text: Complete traceback. Equal to `user_part` if no frame is omitted.
    """

    user_part: str
    full_text: str


def read_tail(trial: TrialRecord) -> list[ShownLine]:
    """Return the last output lines of a trial's workers, without reading the complete log."""
    end = _log_size(trial)
    return _assign_levels(_read_between(trial, max(0, end - _CHUNK_BYTES), end))[-_TAIL_LINES:]


def read_back(
    trial: TrialRecord, *, before: int | None, find: str, level: str
) -> tuple[list[ShownLine], int]:
    """Return matching log lines before a position, oldest first.

    The search stops after some hundred lines or 8 MiB.

    Args:
        trial: The trial.
        before: End position in bytes. None: end of the log.
        find: Text that the lines contain, ignoring case. "": any text.
        level: Lowest level in `LEVELS`. "": any line.

    Returns:
        The lines, and the start position of the part that was read.
    """
    end = _log_size(trial)
    start = end if before is None else min(before, end)
    levels = LEVELS[LEVELS.index(level) :] if level else ()
    text = find.casefold()
    matches: list[ShownLine] = []
    for _ in range(_MAX_CHUNKS):
        if not start or len(matches) >= _ENOUGH:
            break
        stop, start = start, max(0, start - _CHUNK_BYTES)
        matches[:0] = [
            shown
            for shown in _assign_levels(_read_between(trial, start, stop))
            if (not level or shown.level in levels) and text in shown.line.text.casefold()
        ]
    return matches, start


def last_traceback(lines: Sequence[ShownLine], model_dir: str) -> Traceback | None:
    """Return the last traceback of a log, or None.

    Args:
        lines: The lines.
        model_dir: Directory of the user's code.
    """
    last = max((one.traceback or 0 for one in lines), default=0)
    block = [one.line.text for one in lines if last and one.traceback == last]
    block = block[-_MAX_TRACEBACK:]
    while block and not block[-1].strip():
        block.pop()
    if not block:
        return None
    user_lines = block if "(your code" in block[0] else _select_user_frames(block, Path(model_dir))
    return Traceback(user_part="\n".join(user_lines), full_text="\n".join(block))


def _is_inside(before: str, text: str) -> bool:
    """Whether a line belongs to a traceback or to a chain of tracebacks.

    Args:
        before: Last non-empty line of the traceback.
        text: The line.
    """
    return (
        not text.strip()
        or text[0].isspace()
        or before[:1].isspace()  # the message
        or _BEGIN.match(before) is not None
        or _LINK.match(text) is not None
    )


def _select_user_frames(block: Sequence[str], model_dir: Path) -> list[str]:
    """Return the user's frames of a traceback, or the complete traceback without user frames."""
    user_lines: list[str] = []
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
            user_lines.append(text)
    if not has_own or not num_left_out:
        return list(block)
    return user_lines


def _assign_levels(lines: Sequence[LogLine]) -> list[ShownLine]:
    """Return lines with their levels. Lines of a traceback are errors."""
    shown_lines = []
    count = 0
    # By stream: number of its traceback, last line of the traceback, and lines that may follow.
    inside: dict[tuple[int, int, str], tuple[int, str, int]] = {}
    for line in lines:
        key, text = (line.rank, line.run, line.stream), line.text
        number, before, num_follow = inside.pop(key, (0, "", 0))
        if _BEGIN.match(text):
            if not number:
                count = number = count + 1
                # A worker prints nothing after reporting an error, so the message may be long.
                num_follow = _MAX_MESSAGE if "(your code" in text else 0
        elif number and not _is_inside(before, text):
            number, num_follow = (number, num_follow - 1) if num_follow else (0, 0)
        if number:
            inside[key] = (number, text if text.strip() else before, num_follow)
        level = "error" if number else _find_level(text)
        shown_lines.append(ShownLine(line, level, number or None))
    return shown_lines


def _find_level(text: str) -> str | None:
    word = _WORD.search(text[:_NEAR])
    if word is not None:
        return _WORDS.get(word[1], word[1].lower())
    letter = _LETTER.match(text)
    if letter is not None and (letter[0][0].isdigit() or letter[0][1].isdigit()):
        return _LETTERS[letter[1]]
    return "warning" if _WARNING.match(text) else None


def _log_size(trial: TrialRecord) -> int:
    """Return the size of a trial's log, or 0 if it is on another machine."""
    if trial.trial_dir is None:
        return 0
    try:
        return sum(path.stat().st_size for path in Path(trial.trial_dir).glob("log.jsonl"))
    except OSError:
        return 0


def _read_between(trial: TrialRecord, start: int, end: int) -> list[LogLine]:
    """Return the lines that start in a byte range."""
    lines: list[LogLine] = []
    folder = Path(trial.trial_dir or "")
    limit = _BATCH
    try:
        while start < end:
            chunk, after = read_output_log(folder, start, limit=limit)
            if after > end and limit > 1:  # the remaining lines belong to the next part
                limit //= 2
                continue
            if after == start:
                break
            lines += chunk
            start = after
    except OSError:
        return []
    return lines
