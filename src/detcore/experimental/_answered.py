"""Checks of a server's answers before use: the server may be another program."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any

from detcore._records import document_of
from detcore.remote import ServerRefused, unspell_document, unspell_metrics

if TYPE_CHECKING:
    from detcore._records import Field
    from detcore.experimental._transport import Document

__all__ = ["PARTS", "checked", "checked_list"]

PARTS = 1000
"""Entries that a server answers at most."""

_UNSPELL = {"document": unspell_document, "metrics": unspell_metrics}


def checked(kind: str, answer: Any) -> Document:
    """Return a document with its special numbers, and only the fields that its kind has.

    Raises:
        ServerRefused: If it is none of its kind.
    """
    if not isinstance(answer, dict):
        raise _wrong(kind, f"it is no object but {type(answer).__name__}")
    document: Document = {}
    for name, field in document_of(kind)[1].items():
        value = answer.get(name)
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
