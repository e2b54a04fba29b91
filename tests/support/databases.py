"""Temporary databases of each kind, and their fixtures."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from postgresql_server import PostgreSQLServer, run_server

from detcore.records import Database

__all__ = ["Places", "places", "run_postgresql", "take_lock"]


class Places:
    """Creates databases that are deleted after the test."""

    def __init__(self, folder: Path, server: PostgreSQLServer | None) -> None:
        self._folder = folder
        self._server = server
        self._made: list[str] = []

    def new(self, *, empty: bool = False) -> str:
        """Create a database, with tables unless `empty`, and return its URL."""
        if self._server is None:
            self._made.append(str(self._folder / f"{len(self._made)}.db"))
            return f"sqlite:///{self._made[-1]}"
        self._made.append(self._server.create_database("template0" if empty else "records"))
        return self._server.url(self._made[-1])

    def remove(self) -> None:
        if self._server is not None:
            for name in self._made:
                self._server.drop_database(name)


@contextlib.contextmanager
def run_postgresql(open_records: Callable[[str], Database]) -> Iterator[PostgreSQLServer]:
    """Run a server with a database `records` that has all tables and no rows.

    Args:
        open_records: Function that creates the tables of the database at a URL.
    """
    with run_server() as server:
        server.execute("CREATE DATABASE records")
        open_records(server.url("records")).close()
        yield server


@pytest.fixture(params=["sqlite", "postgresql"])
def places(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Places]:
    """Databases of each kind. Requires the fixture `postgresql`."""
    is_sqlite = request.param == "sqlite"
    places = Places(tmp_path, None if is_sqlite else request.getfixturevalue("postgresql"))
    yield places
    places.remove()


def take_lock(database: Database, experiment_id: int, home: Path) -> None:
    """Hold the runner lock of an experiment until this process exits."""
    lock = database.open_lock(experiment_id, home)
    assert lock.acquire()
    lock.keep()
    vars(database).setdefault("locks_of_the_test", []).append(lock)
