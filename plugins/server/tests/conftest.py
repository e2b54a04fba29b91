"""Servers in separate processes, and record stores on each kind of database."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from databases import Places, places, run_postgresql
from postgresql_server import PostgreSQLServer
from running_server import RunningServer

from detcore_server.server_database import ServerDatabase

__all__ = ["places"]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RunningServer]:
    with RunningServer(tmp_path) as running:
        yield running


@pytest.fixture(scope="session")
def shared_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """Server shared by many tests. Each test uses its own users and names."""
    with RunningServer(tmp_path_factory.mktemp("home")) as running:
        yield running


@pytest.fixture(scope="module")
def module_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """Server of one module, with only this module's records."""
    with RunningServer(tmp_path_factory.mktemp("home")) as running:
        yield running


@pytest.fixture(scope="session")
def postgresql() -> Iterator[PostgreSQLServer]:
    """PostgreSQL server with a database `records` that contains all tables without rows."""
    with run_postgresql(ServerDatabase.open) as server:
        yield server


@pytest.fixture
def database(places: Places) -> Iterator[ServerDatabase]:
    """Record store of a server on each kind of database."""
    with ServerDatabase.open(places.new()) as database:
        yield database
