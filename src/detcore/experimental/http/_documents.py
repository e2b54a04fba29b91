"""Documents of JSON as they travel: numbers that JSON lacks, and the check of an answer."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from detcore.experimental.http._session import ServerRefused

if TYPE_CHECKING:
    from detcore._records import Field
    from detcore.experimental._transport import Document


NUMBER = "$number"
_SPECIAL = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def spell_metrics(value: Any) -> Any:
    """Return metrics (numbers in dictionaries and lists) with special numbers as strings."""
    return _convert(value, lambda leaf: json.dumps(leaf) if _is_special(leaf) else leaf)


def unspell_metrics(value: Any) -> Any:
    """Return the metrics that `spell_metrics` received."""
    return _convert(value, lambda leaf: _SPECIAL.get(leaf, leaf) if isinstance(leaf, str) else leaf)


def _convert(value: Any, convert: Callable[[Any], Any]) -> Any:
    if isinstance(value, dict):
        return {key: _convert(item, convert) for key, item in value.items()}
    return (
        [_convert(item, convert) for item in value] if isinstance(value, list) else convert(value)
    )


def _is_special(value: Any) -> bool:
    return isinstance(value, float) and not math.isfinite(value)


def spell_document(value: Any) -> Any:
    """Return a document with special numbers as objects."""
    if _is_special(value):
        return {NUMBER: json.dumps(value)}
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


_UNSPELL = {"document": unspell_document, "metrics": unspell_metrics}


def checked(kind: str, answer: Any) -> Document:
    """Return a document with its special numbers, and only the fields that its kind has.

    Raises:
        ServerRefused: If it lacks one of them.
    """
    from detcore._records import document_of

    fields = document_of(kind)[1]
    if not isinstance(answer, dict) or not answer.keys() >= fields.keys():
        missing = sorted(fields.keys() - answer) if isinstance(answer, dict) else "all fields"
        raise _refuse(kind, f"it lacks {missing}")
    return {name: _read_field(answer[name], field) for name, field in fields.items()}


def _read_field(value: Any, field: Field) -> Any:
    if field.document is not None and value is not None:
        return (checked_list if field.is_list else checked)(field.document, value)
    return value if field.holds is None else _UNSPELL[field.holds](value)


def checked_list(kind: str, answer: Any) -> list[Document]:
    """Return a list of documents of one kind.

    Raises:
        ServerRefused: If it is none.
    """
    if not isinstance(answer, list):
        raise _refuse(kind, "it is in no list")
    return [checked(kind, item) for item in answer]


def _refuse(kind: str, why: str) -> ServerRefused:
    return ServerRefused(
        f"the server answered with what is no {kind}: {why}.\n"
        "It is another program, or a release of detcore that does not go with this one."
    )
