"""Arguments of the client, checked before anything is asked of the store."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from detcore.errors import InvalidArgumentError, describe

__all__ = ["check_count", "check_id", "check_keys", "check_metadata", "check_text"]


def check_metadata(metadata: Any) -> dict[str, Any]:
    """Return metadata as plain JSON values.

    Raises:
        InvalidArgumentError: If it is no dictionary with texts as keys, or not JSON.
    """
    if not isinstance(metadata, Mapping) or not all(isinstance(key, str) for key in metadata):
        raise InvalidArgumentError(
            f"metadata is {describe(metadata)}; expected a dictionary with texts as keys"
        )
    try:
        plain: dict[str, Any] = json.loads(json.dumps(dict(metadata), allow_nan=False))
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidArgumentError(
            f"metadata cannot be kept as JSON: {error}.\n"
            "It holds texts, numbers (no NaN), booleans, None, lists and dictionaries of these."
        ) from error
    return plain


def check_keys(what: str, keys: Any) -> list[str]:
    """Return a list of texts.

    Raises:
        InvalidArgumentError: If it is something else; a single text is a mistake, too.
    """
    texts = None if isinstance(keys, str) or not isinstance(keys, Iterable) else list(keys)
    if texts is None or not all(isinstance(text, str) for text in texts):
        raise InvalidArgumentError(f"{what} is {describe(keys)}; expected a list of texts")
    return texts


def check_id(what: str, number: Any) -> int:
    """Return the id of a record.

    Raises:
        InvalidArgumentError: If it is no whole number.
    """
    if isinstance(number, bool) or not isinstance(number, int):
        raise InvalidArgumentError(f"{what} is {describe(number)}; expected a whole number")
    return number


def check_count(what: str, number: Any) -> int:
    """Return how many are wanted.

    Raises:
        InvalidArgumentError: If it is no whole number from 1.
    """
    if check_id(what, number) < 1:
        raise InvalidArgumentError(f"{what} is {number}; expected 1 or more")
    return int(number)


def check_text(what: str, text: Any) -> str:
    """Return a text that says something.

    Raises:
        InvalidArgumentError: If it is something else, or empty.
    """
    if not isinstance(text, str) or not text.strip():
        raise InvalidArgumentError(f"{what} is {describe(text)}; expected a text")
    return text
