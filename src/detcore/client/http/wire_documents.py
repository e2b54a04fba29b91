"""Documents in HTTP messages: encoding of NaN and infinities, and checks of answers."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

from detcore.client.documents import DOCUMENTS
from detcore.client.http.http_session import ServerRefusedError
from detcore.log.lines import decode_numbers, encode_numbers

if TYPE_CHECKING:
    from detcore.client.documents import Document


NUMBER = "$number"
_SPECIAL = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
# Metric fields of documents, in which a special number is a string.
_METRICS = ("metrics", "batch_metrics", "value")
# Fields that contain documents, with the kinds of the documents.
_INNER = {
    "validation": "validation",
    "checkpoint": "checkpoint",
    "checkpoints": "ranked",
    "lines": "line",
    "files": "file",
}


def encode_value(value: Any) -> Any:
    """Return a JSON value in which NaN and infinities are objects."""
    if isinstance(value, float) and not math.isfinite(value):
        return {NUMBER: json.dumps(value)}
    if isinstance(value, dict):
        encoded = {key: encode_value(item) for key, item in value.items()}
        return {NUMBER: {NUMBER: encoded[NUMBER]}} if list(encoded) == [NUMBER] else encoded
    if isinstance(value, list):
        return [encode_value(item) for item in value]
    return value


def decode_value(value: Any) -> Any:
    """Return the value that `encode_value` received."""
    if isinstance(value, dict):
        if list(value) == [NUMBER]:
            inner = value[NUMBER]
            if isinstance(inner, str):
                return _SPECIAL.get(inner, value)
            if isinstance(inner, dict) and list(inner) == [NUMBER]:
                return {NUMBER: decode_value(inner[NUMBER])}
        return {key: decode_value(item) for key, item in value.items()}
    if isinstance(value, list):
        return [decode_value(item) for item in value]
    return value


def encode_answer(answer: Any) -> Any:
    """Return a document, or a list of documents, as standard JSON."""
    if isinstance(answer, list):
        return [encode_answer(item) for item in answer]
    if not isinstance(answer, dict):
        return answer
    return {name: _encode_field(name, value) for name, value in answer.items()}


def _encode_field(name: str, value: Any) -> Any:
    if name in _METRICS:
        return encode_numbers(value)
    return encode_answer(value) if name in _INNER else encode_value(value)


def read_document(kind: str, answer: Any) -> Document:
    """Return a document from an answer, with the fields of its kind.

    Args:
        kind: A key of `detcore.client.DOCUMENTS`.
        answer: A result of `encode_answer`.

    Raises:
        ServerRefusedError: If a field is missing.
    """
    names = DOCUMENTS[kind].__annotations__
    if not isinstance(answer, dict) or not answer.keys() >= names.keys():
        missing = sorted(names.keys() - answer if isinstance(answer, dict) else names)
        raise _make_document_error(kind, f"missing fields: {', '.join(missing)}")
    return {name: _decode_field(name, answer[name]) for name in names}


def read_documents(kind: str, answer: Any) -> list[Document]:
    """Return a list of documents of one kind.

    Raises:
        ServerRefusedError: If it is not a list, or a field is missing.
    """
    if not isinstance(answer, list):
        raise _make_document_error(kind, "expected a list")
    return [read_document(kind, item) for item in answer]


def _decode_field(name: str, value: Any) -> Any:
    if name in _METRICS:
        return decode_numbers(value)
    kind = _INNER.get(name)
    if kind is None or value is None:
        return decode_value(value)
    return (read_documents if isinstance(value, list) else read_document)(kind, value)


def _make_document_error(kind: str, why: str) -> ServerRefusedError:
    return ServerRefusedError(
        f"the answer of the server is not a valid {kind}: {why}.\n"
        "Check that it is the address of a detcore server with the same version."
    )
