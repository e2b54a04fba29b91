"""Column types: portable strings, JSON, times, and paths relative to DETCORE_HOME.

Times are seconds since 1970 (UTC). JSON is stored as a string that `detcore.log.lines` writes and
reads, so that every database stores the same bytes and preserves NaN.
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

# Maximum length of an indexed string. PostgreSQL indexes 2,700 bytes, and a character has up to 4.
MAX_INDEXED = 512
PATH_PREFIX = "home:"
URL_PREFIX = "home+file:"


class PlainText(TypeDecorator[str]):
    """String in which NUL and lone surrogates, which databases reject, become U+FFFD.

    A crash message may contain any bytes, and recording it must not fail. JSON does not need this,
    because it is written in ASCII.
    """

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        """Return a string that the database accepts."""
        return replace_unstorable(value) if isinstance(value, str) else value


def replace_unstorable(value: str) -> str:
    """Return a string as `PlainText` stores it."""
    if value.isascii() and "\0" not in value:
        return value
    text = value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text.replace("\0", "\ufffd")


class HomePath(PlainText):
    """A path or ``file://`` URL, stored relative to the directory of the SQLite database.

    So DETCORE_HOME can be moved, copied, restored elsewhere or mounted under another path. Records
    contain absolute paths. Paths outside the directory, and all paths on a database server, are
    stored unchanged.
    """

    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        """Return the stored form of a path."""
        home = get_home(dialect)
        if home is not None and value is not None:
            for prefix, root in ((PATH_PREFIX, str(home)), (URL_PREFIX, home.as_uri())):
                if value == root or value.startswith(f"{root.rstrip('/')}/"):
                    value = prefix + value[len(root) :].lstrip("/")
                    break
        return super().process_bind_param(value, dialect)

    def process_result_value(self, value: str | None, dialect: Dialect) -> str | None:
        """Return the absolute path."""
        home = get_home(dialect)
        if home is None or value is None:
            return value
        for prefix, root in ((PATH_PREFIX, str(home)), (URL_PREFIX, home.as_uri())):
            if value.startswith(prefix):
                return f"{root.rstrip('/')}/{value[len(prefix) :]}".rstrip("/")
        return value


class Converted(TypeDecorator[Any]):
    """A value that is encoded in its column. NULL is None.

    Args:
        encode: Returns the stored form of a value.
        decode: Returns the value of a stored form.
        column_type: The type of the column.
    """

    impl: Any = Text
    cache_ok = True

    def __init__(
        self,
        encode: Callable[[Any], Any],
        decode: Callable[[Any], Any],
        column_type: TypeEngine[Any] | None = None,
    ) -> None:
        super().__init__()
        self.encode = encode
        self.decode = decode
        self.impl = column_type or Text()

    def process_bind_param(self, value: Any, dialect: Dialect) -> Any:
        """Return the stored form of a value."""
        return None if value is None else self.encode(value)

    def process_result_value(self, value: Any, dialect: Dialect) -> Any:
        """Return the value of a stored form.

        Raises:
            DatabaseError: If the value cannot be decoded.
        """
        if value is None:
            return None
        try:
            return self.decode(value)
        except (ValueError, TypeError, ArithmeticError, RecursionError) as error:
            raise DatabaseError(
                f"the records are damaged: {str(value)[:80]!r} cannot be read: {error}.\n"
                "Restore a backup: detcore database restore FILE"
            ) from error


class EncodedJson(str):
    """A JSON string that its column must not encode again."""

    __slots__ = ()


def _encode_metrics(value: object) -> str:
    return value if isinstance(value, EncodedJson) else encode_metrics(value)


def _decode_time(seconds: float) -> datetime.datetime:
    return datetime.datetime.fromtimestamp(seconds, datetime.timezone.utc)


def make_enum_type(kind: type[enum.Enum]) -> Converted:
    """Return the type of a column that stores members of an enumeration."""
    return Converted(lambda value: kind(value).value, kind, String(16))


DOCUMENT = Converted(encode_document, decode_document)
METRICS = Converted(_encode_metrics, decode_metrics)
TIME = Converted(datetime.datetime.timestamp, _decode_time, Float(53))


def set_home(engine: Engine, home: Path) -> None:
    """Set the directory that the paths in an SQLite database are relative to."""
    # A column type only sees the engine's dialect, and each engine has its own dialect object.
    cast(Any, engine.dialect).detcore_home = home


def get_home(dialect: Dialect) -> Path | None:
    """Return the directory of an SQLite database, or None for a database server."""
    return getattr(dialect, "detcore_home", None)
