"""JSON as the records keep it, NumPy scalars as numbers.

Metrics have NaN and the infinities as strings, so that any program can read them. Documents
(configurations, metadata) have them as Python's own JSON extension, so that a text "NaN" in one
stays a text.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any, Final

__all__ = ["decode_document", "decode_metrics", "encode_document", "encode_metrics"]

_SPECIAL = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def encode_metrics(value: object) -> str:
    """Return compact JSON with ``"NaN"``, ``"Infinity"`` and ``"-Infinity"`` as strings.

    Raises:
        TypeError: If something inside is not JSON and not a NumPy scalar or array.
    """
    try:
        # The usual case costs one pass in C; only NaN and infinities take the slow path.
        return _STRICT.encode(value)
    except ValueError:
        return _STRICT.encode(_spell(value))


def encode_document(value: object) -> str:
    """Return compact JSON with ``NaN`` and ``Infinity`` as Python writes them."""
    return json.dumps(value, separators=(",", ":"), default=_unwrap)


def decode_document(text: str) -> Any:
    """Return the value that `encode_document` encoded."""
    # Most are empty, and lists have thousands of them.
    if text == "{}":
        return {}
    if text == "[]":
        return []
    return json.loads(text)


def decode_metrics(text: str) -> Any:
    """Return the value that `encode_metrics` encoded, the three special numbers as floats."""
    value = json.loads(text)
    if '"NaN"' in text or 'Infinity"' in text:
        return _unspell(value)
    return value


def _unwrap(value: object) -> Any:
    """Return a NumPy scalar or array (or an object with `tolist`) as plain numbers."""
    to_list = getattr(value, "tolist", None)
    if callable(to_list):
        return to_list()
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"{type(value).__name__} is not JSON: {value!r}")


# A report is encoded in the thread that trains, and to make an encoder takes longer than to use it.
_STRICT: Final = json.JSONEncoder(allow_nan=False, separators=(",", ":"), default=_unwrap)


def _spell(value: object) -> Any:
    if isinstance(value, float):
        if math.isfinite(value):
            return value
        return "NaN" if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")
    if value is None or isinstance(value, (str, int)):
        return value
    if isinstance(value, Mapping):
        return {key: _spell(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_spell(item) for item in value]
    return _spell(_unwrap(value))


def _unspell(value: object) -> Any:
    if isinstance(value, str):
        return _SPECIAL.get(value, value)
    if isinstance(value, dict):
        return {key: _unspell(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_unspell(item) for item in value]
    return value
