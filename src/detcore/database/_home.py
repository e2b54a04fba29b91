"""Paths in records, which stay right when the folder of the records is moved."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

from sqlalchemy import Dialect, Engine

from detcore.database._text import PlainText

__all__ = ["PATH_PREFIX", "URL_PREFIX", "HomePath", "home_of", "set_home"]

PATH_PREFIX = "home:"
URL_PREFIX = "home+file:"


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
