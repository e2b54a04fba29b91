"""Texts as every database can keep them, and paths, which stay right when their home is moved."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

from sqlalchemy import Dialect, Engine, Text
from sqlalchemy.types import TypeDecorator

# Characters of a text in an index; PostgreSQL's indices hold 2,700 bytes, a character up to four.
MAX_INDEXED = 512
PATH_PREFIX = "home:"
URL_PREFIX = "home+file:"


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


class HomePath(PlainText):
    """A path or ``file://`` URL; below the folder of an SQLite database it is kept relative to it.

    So a home can be moved, copied, restored elsewhere or mounted under another path. Records see
    absolute paths. A database server has no folder, and keeps all paths as they are.
    """

    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        """Return the stored form of a path."""
        home = home_of(dialect)
        if home is not None and value is not None:
            for prefix, root in ((PATH_PREFIX, str(home)), (URL_PREFIX, home.as_uri())):
                if value == root or value.startswith(f"{root.rstrip('/')}/"):
                    value = prefix + value[len(root) :].lstrip("/")
                    break
        return super().process_bind_param(value, dialect)

    def process_result_value(self, value: str | None, dialect: Dialect) -> str | None:
        """Return the path that is meant."""
        home = home_of(dialect)
        if home is None or value is None:
            return value
        for prefix, root in ((PATH_PREFIX, str(home)), (URL_PREFIX, home.as_uri())):
            if value.startswith(prefix):
                return f"{root.rstrip('/')}/{value[len(prefix) :]}".rstrip("/")
        return value


def set_home(engine: Engine, home: Path) -> None:
    """Say which folder the paths of an SQLite database are relative to."""
    # Types of columns learn nothing of an engine but its dialect, which no other engine shares.
    cast(Any, engine.dialect).detcore_home = home


def home_of(dialect: Dialect) -> Path | None:
    """Return the folder of an SQLite database; None for a database server."""
    return getattr(dialect, "detcore_home", None)
