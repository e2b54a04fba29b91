"""Every kind of storage back end that needs no server."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from detcore.storage import FsspecStorage, LocalStorage, StorageBackend


@pytest.fixture(params=["local", "memory", "file through fsspec"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[StorageBackend]:
    backend: StorageBackend
    if request.param == "local":
        backend = LocalStorage(tmp_path / "root")
    elif request.param == "memory":
        backend = FsspecStorage(f"memory://{uuid.uuid4().hex}/runs")
    else:
        backend = FsspecStorage((tmp_path / "root").as_uri())
    yield backend
    backend.delete(entry.key for entry in backend.list())
    backend.close()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with files of several sizes, hostile and empty ones among them."""
    root = tmp_path / "source"
    (root / "a" / "b").mkdir(parents=True)
    (root / "empty.bin").write_bytes(b"")
    (root / "large.bin").write_bytes(bytes(range(256)) * 20_000)
    for index in range(150):
        (root / "a" / f"small-{index}").write_bytes(b"x" * index)
    (root / "a" / "b" / "[1]*?.txt").write_text("a name that is no pattern")
    (root / "a" / "b" / "with space, ümlaut and \n newline").write_text("text")
    return root
