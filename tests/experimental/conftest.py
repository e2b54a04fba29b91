"""Fixtures: a store, and a client of each transport."""

from __future__ import annotations

import contextlib
import dataclasses
import shutil
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest
from client_store import ClientStore
from http_face import make_token, served

from detcore.client import Determined
from detcore.environment import read_environment
from detcore.records import Database

MASTERS = ("DETCORE_MASTER", "DET_MASTER", "DET_MASTER_ADDR", "DET_MASTER_PORT", "DETCORE_DB")


@pytest.fixture(scope="session")
def empty_database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file to copy, because creating a database takes 0.3 s."""
    path = tmp_path_factory.mktemp("database") / "detcore.db"
    Database.open(f"sqlite:///{path}").close()
    return path


@dataclasses.dataclass(frozen=True)
class Face:
    """A server on a folder of records that tests share sequentially.

    Making the application takes a third of a second, so there is one for all.
    """

    url: str
    token: str
    home: Path
    empty: Path

    def clean(self) -> None:
        """Remove the files of a test, except for the token."""
        for path in self.home.iterdir():
            if not path.name.startswith("detcore.db"):
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        copy_database(self.empty, self.home / "detcore.db")


def copy_database(source: Path, target: Path) -> None:
    """Copy an SQLite database, also over an open database."""
    with (
        contextlib.closing(sqlite3.connect(source)) as reading,
        contextlib.closing(sqlite3.connect(target)) as writing,
    ):
        reading.backup(writing)


@pytest.fixture(scope="session")
def face(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Face]:
    home = tmp_path_factory.mktemp("served")
    environment = read_environment({"DETCORE_HOME": str(home)})
    token = make_token(environment.database_url)
    empty = tmp_path_factory.mktemp("empty") / "empty.db"
    copy_database(home / "detcore.db", empty)
    with served(environment) as url:
        yield Face(url, token, home, empty)


@pytest.fixture
def store(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    empty_database: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[ClientStore]:
    """Records of the test, or of the server for a client over HTTP."""
    parameters = getattr(request.node, "callspec", None)
    over_http = parameters is not None and parameters.params.get("client") == "http"
    home = tmp_path / "home"
    if over_http or "face" in request.fixturenames:
        face: Face = request.getfixturevalue("face")
        face.clean()
        home = face.home
    else:
        home.mkdir()
        shutil.copyfile(empty_database, home / "detcore.db")
    for name in MASTERS:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("DETCORE_HOME", str(home))
    monkeypatch.chdir(tmp_path)
    with Database.open(read_environment().database_url) as database:
        store = ClientStore(home, database)
        yield store
        for number in list(store.locks):
            store.release_lock(number)


@pytest.fixture(params=["embedded", "http"])
def client(
    request: pytest.FixtureRequest,
    store: ClientStore,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Determined]:
    """A client that reads the store directly, and a client over HTTP.

    Over HTTP the records of this machine are others, so that nothing can come from there.
    """
    if request.param == "http":
        face: Face = request.getfixturevalue("face")
        monkeypatch.setenv("DETCORE_TOKEN", face.token)
        monkeypatch.setenv("DETCORE_HOME", str(tmp_path / "elsewhere"))
        with Determined(face.url) as asking:
            yield asking
        assert not (tmp_path / "elsewhere").exists()
    else:
        with Determined() as asking:
            yield asking
