"""A store, and a client of each transport."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from client_store import ClientStore, round_trip

from detcore.database import Database
from detcore.environment import read_environment
from detcore.experimental import Determined
from detcore.experimental._embedded import EmbeddedTransport


@pytest.fixture(scope="session")
def empty_database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file to copy: making one anew takes a third of a second."""
    path = tmp_path_factory.mktemp("database") / "detcore.db"
    Database.open(f"sqlite:///{path}").close()
    return path


@pytest.fixture
def store(
    tmp_path: Path, empty_database: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[ClientStore]:
    home = tmp_path / "home"
    home.mkdir()
    shutil.copyfile(empty_database, home / "detcore.db")
    for name in ("DETCORE_MASTER", "DET_MASTER", "DET_MASTER_ADDR", "DETCORE_DB"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("DETCORE_HOME", str(home))
    monkeypatch.chdir(tmp_path)
    with Database.open(read_environment().database_url) as database:
        yield ClientStore(home, database)


@pytest.fixture(params=["embedded", "json"])
def client(request: pytest.FixtureRequest, store: ClientStore) -> Iterator[Determined]:
    """A client of the store as it is used, and one whose questions and answers go through JSON."""
    embedded = EmbeddedTransport(read_environment())
    if request.param == "json":
        with Determined(transport=round_trip(embedded)) as asking:
            yield asking
    else:
        with Determined() as asking:
            yield asking
    embedded.close()
