"""Every kind of storage back end, with real servers for network storages."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from fault_proxy import FaultProxy, fault_proxy
from storage_servers import gcs_server, gcs_settings, moto, s3_settings, seaweedfs

from detcore.storage import LocalStorage, StorageBackend
from detcore_storage import FsspecStorage, GcsStorage, S3Storage


@pytest.fixture(scope="session")
def weed_url() -> Iterator[str]:
    """The address of a SeaweedFS server."""
    with seaweedfs() as url:
        yield url


@pytest.fixture(scope="session")
def moto_url() -> Iterator[str]:
    """The address of a moto server."""
    with moto() as url:
        yield url


@pytest.fixture(scope="session")
def gcs_url() -> Iterator[str]:
    """The address of a fake-gcs-server."""
    with gcs_server() as url:
        yield url


KINDS = ["local", "memory", "file through fsspec", "s3", "moto", "gcs"]
Open = Callable[..., StorageBackend]


@pytest.fixture
def open_kind(request: pytest.FixtureRequest, tmp_path: Path) -> Open:
    """A function that opens a back end of a kind, always the same for equal arguments."""
    prefix = f"{uuid.uuid4().hex}/runs"

    def open_it(kind: str, **fields: object) -> StorageBackend:
        if kind == "local":
            return LocalStorage(tmp_path / "root")
        if kind == "memory":
            return FsspecStorage(f"memory://{prefix}")
        if kind == "file through fsspec":
            return FsspecStorage((tmp_path / "root").as_uri())
        if kind == "gcs":
            return GcsStorage(gcs_settings(request.getfixturevalue("gcs_url"), prefix, **fields))
        server = "moto_url" if kind == "moto" else "weed_url"
        url = request.getfixturevalue(server)
        return S3Storage(s3_settings(url, prefix, **fields))

    return open_it


@pytest.fixture
def s3_proxy(weed_url: str) -> Iterator[FaultProxy]:
    with fault_proxy(weed_url) as proxy:
        yield proxy


@pytest.fixture
def gcs_proxy(gcs_url: str) -> Iterator[FaultProxy]:
    with fault_proxy(gcs_url) as proxy:
        yield proxy


OpenBehindProxy = Callable[..., tuple[StorageBackend, FaultProxy]]


@pytest.fixture
def open_behind_proxy(request: pytest.FixtureRequest) -> OpenBehindProxy:
    """A function that opens a back end whose server is behind a proxy, and returns both."""

    def open_it(
        kind: str, deadline_s: float, prefix: str = ""
    ) -> tuple[StorageBackend, FaultProxy]:
        proxy: FaultProxy = request.getfixturevalue(f"{kind}_proxy")
        prefix = prefix or uuid.uuid4().hex
        if kind == "gcs":
            return GcsStorage(gcs_settings(proxy.url, prefix, deadline_s=deadline_s)), proxy
        return S3Storage(s3_settings(proxy.url, prefix, deadline_s=deadline_s)), proxy

    return open_it


@pytest.fixture(params=KINDS)
def storage(request: pytest.FixtureRequest, open_kind: Open) -> Iterator[StorageBackend]:
    backend = open_kind(request.param)
    yield backend
    backend.delete(entry.key for entry in backend.list())
    backend.close()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A directory with files of several sizes, including hostile and empty files."""
    root = tmp_path / "source"
    (root / "a" / "b").mkdir(parents=True)
    (root / "empty.bin").write_bytes(b"")
    (root / "large.bin").write_bytes(bytes(range(256)) * 20_000)
    (root / "parts.bin").write_bytes(bytes(range(251)) * 90_000)
    for index in range(150):
        (root / "a" / f"small-{index}").write_bytes(b"x" * index)
    (root / "a" / "b" / "[1]*?.txt").write_text("a name with pattern characters")
    (root / "a" / "b" / "with space, ümlaut and 100%41").write_text("text")
    return root
