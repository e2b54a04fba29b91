"""Tests of metadata from clients."""

from __future__ import annotations

import math
from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from detcore_server.api.client_models import MAX_DEPTH, Metadata, is_too_deep

METADATA: TypeAdapter[dict[str, Any]] = TypeAdapter(Metadata)


def nested(depth: int) -> dict[str, Any]:
    """Return `depth` nested containers: a dictionary in lists and dictionaries."""
    value: Any = []
    for level in range(depth - 2):
        value = [1, value] if level % 2 else {"a": 1, "b": value}
    return {"key": value}


def test_metadata_depth_is_limited() -> None:
    deepest = nested(MAX_DEPTH + 1)
    assert not is_too_deep(deepest)
    assert METADATA.validate_python(deepest) == deepest
    assert is_too_deep(nested(MAX_DEPTH + 2))
    with pytest.raises(ValidationError, match=f"nested more than {MAX_DEPTH} levels deep"):
        METADATA.validate_python(nested(MAX_DEPTH + 2))


@pytest.mark.parametrize("number", [math.nan, math.inf])
@pytest.mark.parametrize("form", [lambda x: x, lambda x: [1, x], lambda x: {"a": {"b": x}}])
def test_nan_and_infinity_are_rejected(form: Any, number: float) -> None:
    assert METADATA.validate_python({"key": form(0.5)}) == {"key": form(0.5)}
    with pytest.raises(ValidationError, match="not JSON compliant"):
        METADATA.validate_python({"key": form(number)})
