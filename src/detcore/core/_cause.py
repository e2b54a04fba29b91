"""The line of an error message that names its cause."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator

from detcore.errors import DetcoreError

__all__ = ["describe_cause", "plain_message", "without_frames"]

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_FRAME = re.compile(r'(?P<indent> *)File "(?P<path>[^"]*)", line \d+')
# Frameworks wrap an error in a line that only announces it: it ends with a colon, or is one of
# these (Keras and TensorFlow).
_ANNOUNCEMENT = re.compile(
    r".*:|(\w+: )?Exception encountered when calling .*|Node: '.*'|\d+ root error.*|<stack.*>"
)


def describe_cause(error: BaseException) -> str:
    """Return an error's class and the line of its message that names the cause.

    That is the first line, unless it only announces what follows. The cause is then the first line
    after it that belongs neither to a traceback nor to another announcement.

    Args:
        error: Any exception. The first line of a `DetcoreError` stands without its class.
    """
    lines = [line for line in plain_message(str(error)).splitlines() if line.strip()]
    name = type(error).__name__
    if not lines:
        return name
    first = lines[0].strip()
    if isinstance(error, DetcoreError):
        return first
    if _ANNOUNCEMENT.fullmatch(first):
        rest = (line.strip() for line in without_frames(lines[1:]))
        cause = next((line for line in rest if not _ANNOUNCEMENT.fullmatch(line)), None)
        if cause is not None:
            first = f"{first.rstrip('.:')}: {cause}"
    return f"{name}: {first}"


def plain_message(text: str) -> str:
    """Return a message without the colours that some frameworks write into theirs."""
    return _COLOUR.sub("", text)


def without_frames(
    lines: Iterable[str], *, is_kept: Callable[[str], bool] = lambda path: False
) -> Iterator[str]:
    """Yield lines, leaving out the frames of tracebacks that are part of a message.

    Args:
        lines: Lines of a message.
        is_kept: Whether frames of a file stay.
    """
    indent: int | None = None  # of the frame that is being left out
    for line in lines:
        frame = _FRAME.match(line)
        if frame is not None:
            indent = None if is_kept(frame["path"]) else len(frame["indent"])
        elif indent is not None and line.strip() and _indent(line) <= indent:
            indent = None
        if indent is None:
            yield line


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip(" "))
