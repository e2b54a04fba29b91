"""A server with a few experiments, and the earlier system's client."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from client_store import ClientStore
from determined_client import Client, Filled, client_environment, fill
from running_server import RunningServer

from detcore_server.server_database import ServerDatabase


@pytest.fixture(scope="session")
def environment() -> Path:
    """The client in a virtual environment."""
    return client_environment()


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Filled]:
    """Records of a few experiments."""
    home = tmp_path_factory.mktemp("home")
    with ServerDatabase.open(f"sqlite:///{home / 'detcore.db'}") as database:
        yield fill(ClientStore(home, database))


@pytest.fixture(scope="module")
def served(filled: Filled) -> Iterator[RunningServer]:
    """A server for the records."""
    with RunningServer(filled.store.home) as running:
        yield running


@pytest.fixture(scope="module")
def client(
    environment: Path, served: RunningServer, tmp_path_factory: pytest.TempPathFactory
) -> Client:
    """The client of an administrator."""
    return Client(environment, tmp_path_factory.mktemp("client"), served)
