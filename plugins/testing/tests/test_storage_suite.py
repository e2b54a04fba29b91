"""The core's storage back ends pass the suite."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import fsspec
import pytest
from toy_command import TOY_PLUGIN

from detcore.storage import LocalStorage
from detcore_storage import FsspecStorage
from detcore_testing import FolderAccess, StorageSuite

_BUILT_IN = "the core opens it without a registered type"


class TestLocalStorage(FolderAccess, StorageSuite):
    """Local directory."""

    declined = {"registered": _BUILT_IN}

    def make_storage(self, tmp_path: Path) -> LocalStorage:
        self.root = tmp_path / "root"
        return LocalStorage(self.root)

    def make_unusable(self, tmp_path: Path) -> LocalStorage:
        (tmp_path / "file").write_text("in the way")
        return LocalStorage(tmp_path / "file" / "below")


class TestFileThroughFsspec(FolderAccess, StorageSuite):
    """Local directory through fsspec, with fewer guarantees."""

    declined = {
        "atomic-create": "fsspec's local file system checks before it writes",
        "atomic-replace": "fsspec's local file system overwrites existing files",
        "direct-path": "files are only accessible through fsspec",
        "durable": "fsspec does not flush files to disk",
        "registered": _BUILT_IN,
        "reopened-by-url": "file:// opens LocalStorage",
    }

    def make_storage(self, tmp_path: Path) -> FsspecStorage:
        self.root = tmp_path / "root"
        return FsspecStorage(self.root.as_uri())

    def make_unusable(self, tmp_path: Path) -> FsspecStorage:
        (tmp_path / "file").write_text("in the way")
        return FsspecStorage((tmp_path / "file" / "below").as_uri())


class TestMemory(StorageSuite):
    """Process memory through fsspec."""

    declined = {
        "atomic-create": "fsspec's memory file system checks before it writes",
        "direct-path": "objects in memory have no path",
        "durable": "memory is lost when the process exits",
        "fork-safe": "a forked child has separate memory",
        "registered": _BUILT_IN,
        "unusable": "memory is always writable",
    }

    def make_storage(self, tmp_path: Path) -> FsspecStorage:
        self.top = f"/{uuid.uuid5(uuid.NAMESPACE_URL, str(tmp_path)).hex}/runs"
        self.files = fsspec.filesystem("memory")
        return FsspecStorage(f"memory:/{self.top}")

    def raw_read(self, key: str) -> bytes | None:
        path = f"{self.top}/{key}"
        return bytes(self.files.cat_file(path)) if self.files.isfile(path) else None

    def raw_write(self, key: str, data: bytes) -> None:
        self.files.pipe_file(f"{self.top}/{key}", data)

    def raw_list(self) -> list[str]:
        if not self.files.exists(self.top):
            return []
        return [str(path)[len(self.top) + 1 :] for path in self.files.find(self.top)]

    def raw_delete(self, key: str) -> None:
        self.files.rm_file(f"{self.top}/{key}")


class TestThirdPartyStorage(TestFileThroughFsspec):
    """Slow storage of the toy plugin."""

    storage_type = "slow"
    declined = {
        name: reason
        for name, reason in TestFileThroughFsspec.declined.items()
        if name != "registered"
    }

    @pytest.fixture(autouse=True)
    def _installed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.syspath_prepend(TOY_PLUGIN)

    def make_settings(self, tmp_path: Path) -> dict[str, Any]:
        return {"root": str(tmp_path / "root"), "orders": str(tmp_path / "orders.json")}

    def make_storage(self, tmp_path: Path) -> FsspecStorage:
        from detcore_toy.slow_storage import SlowSettings, SlowStorage

        self.root = tmp_path / "root"
        return SlowStorage(SlowSettings(**self.make_settings(tmp_path)))
