"""Format errors of the user's code with the frames of the user's code."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

from detcore.contract.errors import DetcoreError
from detcore.core.trial_outcome import describe_cause, drop_traceback_frames, strip_colours


def format_user_error(error: BaseException, model_dir: Path, *, full: Path) -> str:
    """Format an error for the author of the code in `model_dir`.

    The frames of this code come first, and the cause is the last line. A file gets the frames of
    detcore and frameworks. An error that detcore raised on purpose has no frames if the user's code
    was not running.

    Args:
        error: The error, with its causes.
        model_dir: Directory of the user's code.
        full: File for the complete traceback, if frames are left out.
    """

    def is_user_code(path: str) -> bool:
        file = Path(path)
        return file.is_relative_to(model_dir) and "site-packages" not in file.parts

    chain = list(iter_error_chain(error))
    if isinstance(error, DetcoreError):
        # A message that quotes the user's code, such as an item of a Sequence, is sufficient.
        causes = [] if _quotes_user_code(error, is_user_code) else chain[1:]
        chain = [error, *(cause for cause in causes if _is_raised_in(cause, is_user_code))]
    text = "\n\nwhich led to:\n\n".join(
        _format_error(link, is_user_code, model_dir, full) for link in reversed(chain)
    )
    if len(chain) == 1 and isinstance(error, DetcoreError):
        return text
    traceback_text = "".join(traceback.format_exception(error))
    try:
        full.parent.mkdir(parents=True, exist_ok=True)
        full.write_text(traceback_text, encoding="utf-8", errors="backslashreplace")
    except OSError:
        return f"{traceback_text}\n{text}"  # the disk may be full
    return text


def iter_error_chain(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and the errors that led to it, in the order of Python tracebacks."""
    visited: list[BaseException] = []
    current: BaseException | None = error
    while current is not None and current not in visited:
        yield current
        visited.append(current)
        hidden = current.__suppress_context__
        current = current.__cause__ or (None if hidden else current.__context__)


def _is_raised_in(error: BaseException, is_user_code: Callable[[str], bool]) -> bool:
    """Return whether the user's code raised an error, here or in a process that it quotes."""
    frames = traceback.extract_tb(error.__traceback__)
    return any(is_user_code(frame.filename) for frame in frames) or _quotes_user_code(
        error, is_user_code
    )


def _quotes_user_code(error: BaseException, is_user_code: Callable[[str], bool]) -> bool:
    """Return whether an error message contains a traceback with the user's code."""
    lines = str(error).splitlines()
    return list(drop_traceback_frames(lines, is_kept=is_user_code)) != list(
        drop_traceback_frames(lines)
    )


def _format_error(
    error: BaseException, is_user_code: Callable[[str], bool], model_dir: Path, full: Path
) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    user_frames = [frame for frame in frames if is_user_code(frame.filename)]
    title = "Traceback (your code, most recent call last):"
    is_ours, is_syntax = isinstance(error, DetcoreError), isinstance(error, SyntaxError)
    if not (user_frames or is_ours or is_syntax):  # a syntax error's message names the place
        user_frames, title = frames[-1:], "Traceback (raised outside your code):"
    lines = [title] if user_frames else []
    lines.extend(line.rstrip() for line in traceback.format_list(user_frames))
    if user_frames and len(user_frames) < len(frames):
        num_omitted = len(frames) - len(user_frames)
        where = "" if is_ours else f"; {full} has all"
        frames_word = "frame" if num_omitted == 1 else "frames"
        lines.append(f"  ({num_omitted} {frames_word} outside {model_dir} left out{where})")
    if is_ours:
        return "\n".join([*lines, f"{type(error).__name__}: {error}"])
    text = strip_colours("".join(traceback.format_exception_only(error)))
    message = text.rstrip().splitlines()
    lines.extend(message if is_syntax else drop_traceback_frames(message, is_kept=is_user_code))
    cause = describe_cause(error)
    # An error without frames contains the traceback of another process, which ends with the cause.
    if frames and not (lines[-1].endswith(cause) or cause.startswith(lines[-1])):
        lines.append(cause)
    return "\n".join(lines)
