"""Assertions whose messages report the value found.

pytest explains plain ``assert`` statements only in test modules, which a suite is not.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator


def expect(is_so: object, found: str) -> None:
    """Raise an `AssertionError` with the text `found` unless `is_so` is true."""
    if not is_so:
        raise AssertionError(found)


def expect_equal(found: object, wanted: object, what: str) -> None:
    """Fail unless two values are equal."""
    if found != wanted:
        raise AssertionError(f"{what}: {shorten(found)}; expected {shorten(wanted)}")


@contextlib.contextmanager
def expect_error(kind: type[Exception], what: str) -> Iterator[None]:
    """Fail unless the block raises an error of a kind."""
    try:
        yield
    except kind:
        return
    except Exception as error:
        raise AssertionError(
            f"{what} raised {type(error).__name__}: {error}; expected {kind.__name__}"
        ) from error
    raise AssertionError(f"{what} raised nothing; expected {kind.__name__}")


def shorten(value: object) -> str:
    """Return a value as text, of a long one the beginning."""
    text = repr(value)
    return text if len(text) <= 300 else f"{text[:300]}... ({len(text)} characters)"
