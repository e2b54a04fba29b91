"""Texts that people wrote, as every database can keep them."""

from __future__ import annotations

from sqlalchemy import Dialect, Text
from sqlalchemy.types import TypeDecorator

__all__ = ["MAX_INDEXED", "PlainText", "plain_text"]

# Characters of a text in an index; PostgreSQL's indices hold 2,700 bytes, a character up to four.
MAX_INDEXED = 512


class PlainText(TypeDecorator[str]):
    """Text in which NUL and lone surrogates, which are not valid Unicode, become U+FFFD.

    A message of a crash may hold anything, and recording it must not fail. JSON needs none of
    this, because it is written in ASCII.
    """

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        """Return a text that can be kept."""
        return plain_text(value) if isinstance(value, str) else value


def plain_text(value: str) -> str:
    """Return a text as `PlainText` keeps it."""
    if value.isascii() and "\0" not in value:
        return value
    whole = value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return whole.replace("\0", "\ufffd")
