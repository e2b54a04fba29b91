"""The records that commands read; what is told of them is in `detcore.pages`."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from detcore.cli._context import CliContext
    from detcore.database import Database

__all__ = ["open_records"]


@contextlib.contextmanager
def open_records(obj: CliContext) -> Iterator[Database]:
    """Open the database, with everything in it that workers have reported so far."""
    from detcore.database import ingest_spools

    with obj.open_database() as database:
        ingest_spools(database, obj.environment.home)
        yield database
