"""The classes of errors, and how they name values."""

from __future__ import annotations

import pytest

from detcore import errors
from detcore.errors import describe


def test_errors_derive_from_detcore_error() -> None:
    for name in errors.__all__:
        kind = getattr(errors, name)
        if isinstance(kind, type):
            assert issubclass(kind, errors.DetcoreError), name


class Broken:
    def __repr__(self) -> str:
        raise RuntimeError


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (3, "3 (int)"),
        ("a", "'a' (str)"),
        (None, "None (NoneType)"),
        ("x" * 100, "'" + "x" * 56 + "... (str)"),
        (Broken, f"<class '{__name__}.Broken'> (type)"),
    ],
)
def test_describe_returns_one_line(value: object, text: str) -> None:
    assert describe(value) == text


def test_describe_never_fails() -> None:
    assert describe(Broken()).startswith("a value without a repr (")
    text = describe(type("Lines", (), {"__repr__": lambda self: "a\n   b"})())
    assert text.startswith("a b (")
    assert text.endswith("Lines)")
