"""Numbers that JSON does not have, as a server and its clients write them.

Metrics have them as texts, as the records do: a metric is a number, so "NaN" can only mean the
number. Documents (configurations, hyperparameters, metadata) may hold any text, so there they are
objects: ``{"$number": "NaN"}``. A user's object that looks like one, with ``"$number"`` as its only
key, has its value wrapped in another such object.
"""

from __future__ import annotations

import math
from typing import Any

__all__ = ["NUMBER", "spell_document", "spell_metrics", "unspell_document", "unspell_metrics"]

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
