"""Databases of each kind that are removed after a test."""

from __future__ import annotations

from pathlib import Path

from postgresql_server import PostgreSQLServer


class Places:
    """Makes databases that are removed after the test."""

    def __init__(self, folder: Path, server: PostgreSQLServer | None) -> None:
        self._folder = folder
        self._server = server
        self._made: list[str] = []

    def new(self, *, empty: bool = False) -> str:
        """Return the URL of a new database, with tables unless it is to be `empty`."""
        if self._server is None:
            self._made.append(str(self._folder / f"{len(self._made)}.db"))
            return f"sqlite:///{self._made[-1]}"
        self._made.append(self._server.create_database("template0" if empty else "records"))
        return self._server.url(self._made[-1])

    def remove(self) -> None:
        if self._server is not None:
            for name in self._made:
                self._server.drop_database(name)
