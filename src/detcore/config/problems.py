"""Errors of wrong values with details for the report, and suggestions for misspelt names."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple, TypedDict

from pydantic_core import (
    ErrorDetails,
    InitErrorDetails,
    PydanticCustomError,
    PydanticKnownError,
    ValidationError,
)

from detcore.config.source_text import Place
from detcore.contract.errors import closest_match
from detcore.masking import mask_text

if TYPE_CHECKING:
    from typing_extensions import Unpack


# A location and an error: a detcore error, a pydantic error, or the name of a pydantic error.
Problem = tuple[Place, "PydanticCustomError | PydanticKnownError | str"]
OwnProblem = tuple[Place, PydanticCustomError]


class Mention(NamedTuple):
    """A related place of a mistake, as a path from the top of the file, with a label."""

    place: Place
    text: str = ""
    at: Literal["key", "value"] = "value"


class Details(TypedDict, total=False):
    """Details of a mistake, for `make_problem`.

    Attributes:
        suggestion: The most likely correction.
        choices: All valid values.
        at: Whether the key or the value is the position.
        also: Related places. Places that are not in the file are left out of the report.
        help: Further lines.
    """

    suggestion: str | None
    choices: Iterable[str]
    at: Literal["key", "value"]
    also: Iterable[Mention]
    help: Iterable[str]


def make_problem(text: str, label: str = "", **details: Unpack[Details]) -> PydanticCustomError:
    """Return an error that contains the label and the `Details` for the report."""
    none: Details = {
        "suggestion": None, "at": "value", "choices": (), "also": (), "help": ()
    }  # fmt: skip
    context = {"text": text, "label": label, **none, **details}
    return PydanticCustomError("detcore", "{text}", context)


def make_problem_at(
    place: Place, text: str, label: str = "", **details: Unpack[Details]
) -> OwnProblem:
    """Return `make_problem` with its place in the file."""
    return place, make_problem(text, label, **details)


def raise_problems(title: str, problems: Sequence[Problem]) -> None:
    """Raise one pydantic error for all `problems`, if there are any."""
    if problems:
        details = [
            InitErrorDetails(type=error.type, loc=loc, input=None, ctx=dict(error.context or {}))
            if isinstance(error, PydanticKnownError)
            else InitErrorDetails(type=error, loc=loc, input=None)
            for loc, error in problems
        ]
        raise ValidationError.from_exception_data(title, details, hide_input=True)


def prefix_error(error: ErrorDetails, place: Place = ()) -> Problem:
    """Return a pydantic error whose location has `place` as a prefix."""
    context = error.get("ctx") or {}
    loc = (*place, *error["loc"])
    if error["type"] == "detcore":
        return loc, PydanticCustomError("detcore", "{text}", context)
    try:
        return loc, PydanticKnownError(error["type"], context or None)  # type: ignore[arg-type]  # any
    except (KeyError, TypeError):  # an error that a plugin defined
        return loc, make_problem(str(error["msg"]))


def describe_value(value: object) -> str:
    """Describe a value in terms of the experiment file."""
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


def repair_number(value: object, parse: type[int] | type[float]) -> tuple[str, str | None]:
    """Return the label and the suggestion for a value that is not a number."""
    if isinstance(value, str):
        text = value.strip()
        with contextlib.suppress(ValueError):
            parse(text.replace("_", ""))
            return f"remove the quotes: {text}", text
    if isinstance(value, float) and parse is int and value == int(value):
        return f"write {int(value)}", str(int(value))
    return "", None


def did_you_mean(suggestion: str | None) -> str:
    """Return a question with the suggestion, or an empty string."""
    return f"did you mean '{suggestion}'?" if suggestion else ""


# Names in other tools and in the earlier system, by detcore's name.
_OTHER_WORDS = {
    word: name
    for name, words in {
        "adaptive_asha": "asha hyperband adaptive adaptivesimple",
        "async_halving": "synchalving",
        "scheduling_unit": "batchesperstep",
        "global_batch_size": "batchsize",
        "categorical": "choice",
        "vals": "choices values",
        "smaller_is_better": "direction",
        "double": "float uniform",
        "slots_per_trial": "gpus slots",
        "gcs": "gs google",
        "hyperparameters": "hparams hps params",
        "int": "integer",
        "shared_fs": "local nfs file",
        "loguniform": "logarithmic",
        "maxval": "max",
        "minval": "min",
        "bind_mounts": "mount",
        "metric": "objective",
        "host_path": "path",
        "max_trials": "samples trials",
        "experiment_seed": "seed",
        "batches": "step steps",
        "checkpoint_storage": "storage",
        "labels": "tags",
        "val": "value",
        "true": "yes on y",
        "false": "no off n",
    }.items()
    for word in words.split()
}


def find_closest(name: str, choices: Iterable[str]) -> str | None:
    """Return the most similar choice, or None if no choice is similar.

    >>> find_closest("schedulin_unit", ["scheduling_unit", "searcher"])
    'scheduling_unit'
    >>> find_closest("mount", ["bind_mounts", "environment"])
    'bind_mounts'
    >>> find_closest("banana", ["max_length", "max_trials"]) is None
    True
    """
    valid = list(choices)
    synonym = _OTHER_WORDS.get(re.sub(r"[^a-z0-9]", "", name.lower()))
    return synonym if synonym in valid else closest_match(name, valid)
