"""Documents of JSON as they travel: numbers that JSON lacks, and the check of an answer."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any

from detcore.experimental.http._session import ServerRefused

if TYPE_CHECKING:
    from detcore._records import Field
    from detcore.experimental._transport import Document


NUMBER = "$number"
_SPECIAL = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def spell_metrics(value: Any) -> Any:
    """Return metrics (numbers in dictionaries and lists) with special numbers as texts."""
    if isinstance(value, float) and not math.isfinite(value):
        return _name(value)
    if isinstance(value, dict):
        return {key: spell_metrics(item) for key, item in value.items()}
    if isinstance(value, list):
        return [spell_metrics(item) for item in value]
    return value


def unspell_metrics(value: Any) -> Any:
    """Return the metrics that `spell_metrics` received."""
    if isinstance(value, str):
        return _SPECIAL.get(value, value)
    if isinstance(value, dict):
        return {key: unspell_metrics(item) for key, item in value.items()}
    if isinstance(value, list):
        return [unspell_metrics(item) for item in value]
    return value


def spell_document(value: Any) -> Any:
    """Return a document with special numbers as objects."""
    if isinstance(value, float) and not math.isfinite(value):
        return {NUMBER: _name(value)}
    if isinstance(value, dict):
        spelled = {key: spell_document(item) for key, item in value.items()}
        return {NUMBER: {NUMBER: spelled[NUMBER]}} if list(spelled) == [NUMBER] else spelled
    if isinstance(value, list):
        return [spell_document(item) for item in value]
    return value


def unspell_document(value: Any) -> Any:
    """Return the document that `spell_document` received."""
    if isinstance(value, dict):
        if list(value) == [NUMBER]:
            inner = value[NUMBER]
            if isinstance(inner, str):
                return _SPECIAL.get(inner, value)
            if isinstance(inner, dict) and list(inner) == [NUMBER]:
                return {NUMBER: unspell_document(inner[NUMBER])}
        return {key: unspell_document(item) for key, item in value.items()}
    if isinstance(value, list):
        return [unspell_document(item) for item in value]
    return value


def _name(value: float) -> str:
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


_UNSPELL = {"document": unspell_document, "metrics": unspell_metrics}


def checked(kind: str, answer: Any) -> Document:
    """Return a document with its special numbers, and only the fields that its kind has.

    Raises:
        ServerRefused: If it is none of its kind.
    """
    from detcore._records import document_of

    if not isinstance(answer, dict):
        raise _wrong(kind, f"it is no object but {type(answer).__name__}")
    document: Document = {}
    for name, field in document_of(kind)[1].items():
        value = answer.get(name, field.default)
        if not _fits(value, field):
            missing = "" if name in answer else " (it is missing)"
            raise _wrong(kind, f"its {name!r} is {type(value).__name__}{missing}")
        if field.document is not None and value is not None:
            check = checked_list if field.is_list else checked
            value = check(field.document, value)
        elif field.holds is not None:
            value = _UNSPELL[field.holds](value)
        document[name] = value
    return document


def checked_list(kind: str, answer: Any) -> list[Document]:
    """Return a list of documents of one kind.

    Raises:
        ServerRefused: If it is none.
    """
    if not isinstance(answer, list):
        raise _wrong(kind, f"it is no list but {type(answer).__name__}")
    return [checked(kind, item) for item in answer]


def _fits(value: Any, field: Field) -> bool:
    """Whether JSON is what a field holds, not looking into lists and objects."""
    if value is None or isinstance(value, bool):
        return field.is_optional if value is None else field.type is bool
    if field.is_list:
        return isinstance(value, list)
    if field.type is float:
        return isinstance(value, int | float | (str if field.holds == "metrics" else float))
    if field.type in (int, bool):
        return isinstance(value, int) and field.type is int
    is_text = isinstance(field.type, type) and issubclass(field.type, str | datetime)
    return isinstance(value, str if is_text else Mapping)


def _wrong(kind: str, why: str) -> ServerRefused:
    return ServerRefused(
        f"the server answered with what is no {kind}: {why}.\n"
        "It is another program, or a release of detcore that does not go with this one."
    )
