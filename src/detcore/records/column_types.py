"""How columns keep values.

Times are seconds since 1970 (UTC). JSON is kept as text that `detcore.log.lines` writes and reads,
so that every database holds the same bytes and NaN survives.
"""

from __future__ import annotations

import datetime
import enum
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

from sqlalchemy import Dialect, Engine, Float, String, Text
from sqlalchemy.types import TypeDecorator, TypeEngine

from detcore.contract.errors import DatabaseError
from detcore.log.lines import decode_document, decode_metrics, encode_document, encode_metrics

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


class Converted(TypeDecorator[Any]):
    """A value that its column keeps in another form; NULL is None.

    Args:
        encode: Returns the kept form of a value.
        decode: Returns the value of its kept form.
        kept_as: The type of the column.
    """

    impl: Any = Text
    cache_ok = True

    def __init__(
        self,
        encode: Callable[[Any], Any],
        decode: Callable[[Any], Any],
        kept_as: TypeEngine[Any] | None = None,
    ) -> None:
        super().__init__()
        self.encode = encode
        self.decode = decode
        self.impl = kept_as or Text()

    def process_bind_param(self, value: Any, dialect: Dialect) -> Any:
        """Return the kept form of a value."""
        return None if value is None else self.encode(value)

    def process_result_value(self, value: Any, dialect: Dialect) -> Any:
        """Return the value of its kept form.

        Raises:
            DatabaseError: If it cannot be read.
        """
        if value is None:
            return None
        try:
            return self.decode(value)
        except (ValueError, TypeError, ArithmeticError, RecursionError) as error:
            raise DatabaseError(
                f"the records are damaged: {str(value)[:80]!r} cannot be read: {error}.\n"
                "Restore a copy: detcore database restore FILE"
            ) from error


class EncodedJson(str):
    """JSON text, for a column that would encode a value as this text."""

    __slots__ = ()


def _encode_metrics(value: object) -> str:
    return value if isinstance(value, EncodedJson) else encode_metrics(value)


def _decode_time(seconds: float) -> datetime.datetime:
    return datetime.datetime.fromtimestamp(seconds, datetime.timezone.utc)


def choice_of(kind: type[enum.Enum]) -> Converted:
    """Return the type of a column with a member of an enumeration."""
    return Converted(lambda value: kind(value).value, kind, String(16))


DOCUMENT = Converted(encode_document, decode_document)
METRICS = Converted(_encode_metrics, decode_metrics)
TIME = Converted(datetime.datetime.timestamp, _decode_time, Float(53))


def set_home(engine: Engine, home: Path) -> None:
    """Say which folder the paths of an SQLite database are relative to."""
    # Types of columns learn nothing of an engine but its dialect, which no other engine shares.
    cast(Any, engine.dialect).detcore_home = home


def home_of(dialect: Dialect) -> Path | None:
    """Return the folder of an SQLite database; None for a database server."""
    return getattr(dialect, "detcore_home", None)
