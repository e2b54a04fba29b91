"""Errors in the user's own code, shown with the user's own frames."""

from __future__ import annotations

import traceback
from pathlib import Path

from detcore.errors import DetcoreError

__all__ = ["format_user_error"]


def format_user_error(error: BaseException, model_dir: Path) -> str:
    """Format an error for the person who wrote the code in `model_dir`.

    Frames of detcore and of frameworks are left out where frames of the user's code remain;
    an error that detcore raised on purpose needs none where the user's code was not running.

    Args:
        error: What was raised; its causes are followed.
        model_dir: Folder of the user's code.
    """
    parts: list[str] = []
    chain: list[BaseException] = []
    current: BaseException | None = error
    while current is not None and current not in chain:
        chain.append(current)
        hidden = current.__suppress_context__
        current = current.__cause__ or (None if hidden else current.__context__)
    for link in reversed(chain):
        # What a message of ours explains needs no second telling.
        if isinstance(error, DetcoreError) and link is not error:
            continue
        parts.append(_format_one(link, model_dir))
    return "\n\nwhich led to:\n\n".join(parts)


def _format_one(error: BaseException, model_dir: Path) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if Path(frame.filename).is_relative_to(model_dir)]
    message = "".join(traceback.format_exception_only(type(error), error)).rstrip()
    if isinstance(error, DetcoreError):
        message = f"{type(error).__name__}: {error}"
        shown = own
    else:
        shown = own or list(frames)
    if not shown:
        return message
    left_out = len(frames) - len(shown)
    lines = ["Traceback (your code, most recent call last):" if own else "Traceback:"]
    lines.extend(line.rstrip() for line in traceback.format_list(shown))
    if left_out:
        lines.append(f"  ({left_out} frames outside {model_dir} left out)")
    lines.append(message)
    return "\n".join(lines)
