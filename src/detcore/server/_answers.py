"""Answers as JSON that every reader of JSON takes: in ASCII, without NaN and the infinities."""

from __future__ import annotations

import json
from typing import Any

from fastapi.responses import JSONResponse

from detcore.remote import NUMBER, spell_document, spell_metrics

__all__ = ["AsciiJson"]

# The parts of documents that hold metrics; see `detcore.experimental.Transport`.
_METRICS = ("metrics", "batch_metrics", "value")
# Documents in documents.
_INNER = ("validation", "checkpoint", "checkpoints")


class AsciiJson(JSONResponse):
    """A document of `detcore.experimental.Transport`, or a list of them.

    Texts of users may hold what UTF-8 cannot say (halves of surrogate pairs); escaped, they pass.
    """

    def render(self, content: Any) -> bytes:
        """Return the content as JSON; see `detcore.remote` for special numbers."""
        try:
            text = _dumps(content)
        except ValueError:  # the long way, for numbers that JSON does not have
            return _dumps(_spell(content)).encode()
        return (_dumps(_spell(content)) if f'"{NUMBER}"' in text else text).encode()


def _dumps(content: Any) -> str:
    return json.dumps(content, allow_nan=False, separators=(",", ":"))


def _spell(document: Any) -> Any:
    if isinstance(document, list):
        return [_spell(item) for item in document]
    if not isinstance(document, dict):
        return document
    return {
        key: spell_metrics(value)
        if key in _METRICS
        else _spell(value)
        if key in _INNER
        else spell_document(value)
        for key, value in document.items()
    }
