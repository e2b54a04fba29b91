"""How the models say what is wrong, so that the report can show it in place."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

from pydantic_core import (
    InitErrorDetails,
    PydanticCustomError,
    PydanticKnownError,
    ValidationError,
)

from detcore._secrets import mask_text

__all__ = ["Problem", "again", "describe_value", "problem", "raise_problems"]

# A place and an error; the error a name that pydantic knows with what belongs to it, or our own.
Problem = tuple["tuple[str | int, ...]", "PydanticCustomError | PydanticKnownError | str"]


def problem(
    text: str,
    *,
    label: str = "",
    suggestion: str | None = None,
    choices: Iterable[str] = (),
    at: Literal["key", "value"] = "value",
    also: Sequence[tuple[str, str]] = (),
    help: Iterable[str] = (),
) -> PydanticCustomError:
    """Return an error that carries what a report shows.

    Args:
        text: What is wrong.
        label: What to say under the place.
        suggestion: What most likely was meant.
        choices: All that would be valid.
        at: Whether the key or the value is the place.
        also: Keys beside this one that have a part in it, and what to say under them.
        help: Further lines.
    """
    context: dict[str, Any] = {
        "text": text,
        "label": label,
        "suggestion": suggestion,
        "choices": list(choices),
        "at": at,
        "also": list(also),
        "help": list(help),
    }
    return PydanticCustomError("detcore", "{text}", context)


def raise_problems(title: str, problems: Sequence[Problem]) -> None:
    """Raise one pydantic error for all of `problems`; do nothing if there are none."""
    if problems:
        details = [_details(loc, error) for loc, error in problems]
        raise ValidationError.from_exception_data(title, details, hide_input=True)


def _details(
    loc: tuple[str | int, ...], error: PydanticCustomError | PydanticKnownError | str
) -> InitErrorDetails:
    if isinstance(error, PydanticKnownError):
        return InitErrorDetails(type=error.type, loc=loc, input=None, ctx=dict(error.context or {}))
    return InitErrorDetails(type=error, loc=loc, input=None)


def again(error: Mapping[str, Any], place: tuple[str | int, ...] = ()) -> Problem:
    """Return an error that pydantic reported, to be raised again with `place` before its place."""
    context = error.get("ctx") or {}
    loc = (*place, *error["loc"])
    kind = error["type"]
    if kind == "detcore":
        return loc, PydanticCustomError("detcore", "{text}", context)
    try:
        return loc, PydanticKnownError(kind, context or None)
    except (KeyError, TypeError):  # an error of a plugin's own making
        return loc, problem(str(error["msg"]))


def describe_value(value: object) -> str:
    """Name a value the way the file's author knows it."""
    if value is None:
        return "nothing (null)"
    if isinstance(value, bool):
        return f"the boolean {str(value).lower()}"
    if isinstance(value, int):
        return f"the integer {value}"
    if isinstance(value, float):
        return f"the number {value}"
    if isinstance(value, str):
        text = value if len(value) <= 60 else value[:57] + "..."
        return f'the string "{mask_text(text)}"'
    return "a mapping" if isinstance(value, Mapping) else "a list"
