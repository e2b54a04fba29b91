"""Checkpoints in an object store, read by the client or through the server."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import pytest
from client_store import FILES, ClientStore
from determined_client import Client
from running_server import PASSWORD, USER, RunningServer
from storage_servers import ACCESS_KEY, BUCKET, SECRET_KEY, seaweedfs

from detcore.environment import read_environment
from detcore.plugins import PluginManager
from detcore.records import Database
from detcore.storage import StorageBackend, open_storage

_KEYS = {"AWS_ACCESS_KEY_ID": ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": SECRET_KEY}
_DOWNLOADING = """
import pathlib
client.login()
found = client.get_checkpoint(given["uuid"])
read = {}
for mode in client.DownloadMode:
    try:
        folder = pathlib.Path(found.download(given["folder"] + "/" + mode.value, mode))
        read[mode.value] = {name: folder.joinpath(name).read_text() for name in given["names"]}
    except Exception as error:
        read[mode.value] = type(error).__name__
say(read)
"""


@dataclasses.dataclass
class _InS3(ClientStore):
    """Records whose checkpoints are in a bucket."""

    spec: dict[str, str]

    @property
    def storage(self) -> StorageBackend:  # type: ignore[override]  # of the same protocol
        return open_storage(self.spec, home=self.home, plugins=PluginManager(read_environment({})))


@pytest.fixture
def endpoint() -> Iterator[str]:
    with seaweedfs() as url:
        yield url


def test_checkpoint_in_bucket(
    environment: Path, endpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in _KEYS.items():
        monkeypatch.setenv(name, value)
    home, client_home = tmp_path / "home", tmp_path / "client"
    home.mkdir()
    client_home.mkdir()
    spec = {"type": "s3", "bucket": BUCKET, "prefix": "runs", "endpoint_url": endpoint}
    with Database.open(f"sqlite:///{home / 'detcore.db'}") as database:
        store = _InS3(home, database, spec)
        uuid = store.checkpoint(store.trial(store.experiment(checkpoint_storage=spec)), 10)
    login = {"DET_USER": USER, "DET_PASS": PASSWORD, "AWS_EC2_METADATA_DISABLED": "true"}
    with RunningServer(home) as server:
        for name in _KEYS:
            monkeypatch.delenv(name)
        client = Client(environment, client_home, server, {**login, **_KEYS})
        message = client.script(
            _DOWNLOADING, uuid=uuid, folder=str(tmp_path / "with"), names=list(FILES)
        )
        assert message == {"direct": FILES, "master": FILES, "auto": FILES}
        # Without credentials the client reads the files from the server.
        client = Client(environment, client_home, server, login)
        message = client.script(
            _DOWNLOADING, uuid=uuid, folder=str(tmp_path / "without"), names=list(FILES)
        )
        assert message == {"direct": "NoDirectStorageAccess", "master": FILES, "auto": FILES}
