"""Errors in the user's own code, shown with the user's own frames."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

from detcore.contract.errors import DetcoreError
from detcore.core.trial_outcome import describe_cause, drop_traceback_frames, strip_colours


def format_user_error(error: BaseException, model_dir: Path, *, full: Path) -> str:
    """Format an error for the person who wrote the code in `model_dir`.

    The frames of that code come first and the cause is the last line. Frames of detcore and of
    frameworks are written to a file; an error that detcore raised on purpose has none where the
    user's code was not running.

    Args:
        error: The error; its causes are followed.
        model_dir: Folder of the user's code.
        full: File that gets the whole traceback, where frames are left out.
    """

    def is_own(path: str) -> bool:
        file = Path(path)
        return file.is_relative_to(model_dir) and "site-packages" not in file.parts

    chain = list(error_chain(error))
    if isinstance(error, DetcoreError):
        # One whose message quotes own code, such as an item of a Sequence, needs no more.
        causes = [] if _quotes(error, is_own) else chain[1:]
        chain = [error, *(cause for cause in causes if _is_raised_in(cause, is_own))]
    text = "\n\nwhich led to:\n\n".join(
        _format_one(each, is_own, model_dir, full) for each in reversed(chain)
    )
    if len(chain) == 1 and isinstance(error, DetcoreError):
        return text
    whole = "".join(traceback.format_exception(error))
    try:
        full.parent.mkdir(parents=True, exist_ok=True)
        full.write_text(whole, encoding="utf-8", errors="backslashreplace")
    except OSError:
        return f"{whole}\n{text}"  # the disk may be full
    return text


def error_chain(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and the errors that led to it, as tracebacks show them."""
    seen: list[BaseException] = []
    current: BaseException | None = error
    while current is not None and current not in seen:
        yield current
        seen.append(current)
        hidden = current.__suppress_context__
        current = current.__cause__ or (None if hidden else current.__context__)


def _is_raised_in(error: BaseException, is_own: Callable[[str], bool]) -> bool:
    """Return whether own code raised an error, here or in a process whose traceback it quotes."""
    frames = traceback.extract_tb(error.__traceback__)
    return any(is_own(frame.filename) for frame in frames) or _quotes(error, is_own)


def _quotes(error: BaseException, is_own: Callable[[str], bool]) -> bool:
    """Return whether the message of an error has a traceback with own code."""
    lines = str(error).splitlines()
    return list(drop_traceback_frames(lines, is_kept=is_own)) != list(drop_traceback_frames(lines))


def _format_one(
    error: BaseException, is_own: Callable[[str], bool], model_dir: Path, full: Path
) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    shown = [frame for frame in frames if is_own(frame.filename)]
    title = "Traceback (your code, most recent call last):"
    is_ours, is_syntax = isinstance(error, DetcoreError), isinstance(error, SyntaxError)
    if not (shown or is_ours or is_syntax):  # the message of invalid syntax names the place
        shown, title = frames[-1:], "Traceback (raised outside your code):"
    lines = [title] if shown else []
    lines.extend(line.rstrip() for line in traceback.format_list(shown))
    if shown and len(shown) < len(frames):
        left_out = len(frames) - len(shown)
        where = "" if is_ours else f"; {full} has all"
        frames_word = "frame" if left_out == 1 else "frames"
        lines.append(f"  ({left_out} {frames_word} outside {model_dir} left out{where})")
    if is_ours:
        return "\n".join([*lines, f"{type(error).__name__}: {error}"])
    text = strip_colours("".join(traceback.format_exception_only(error)))
    message = text.rstrip().splitlines()
    lines.extend(message if is_syntax else drop_traceback_frames(message, is_kept=is_own))
    cause = describe_cause(error)
    # Without frames it is the traceback of another process, which ends with the cause.
    if frames and not (lines[-1].endswith(cause) or cause.startswith(lines[-1])):
        lines.append(cause)
    return "\n".join(lines)
