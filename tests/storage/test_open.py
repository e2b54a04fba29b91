"""Opening a storage from a specification."""

from __future__ import annotations

import sys
import types
from pathlib import Path
from typing import Any

import pytest

from detcore.environment import read_environment
from detcore.errors import (
    ConfigError,
    RunError,
    StorageError,
    StorageTypeError,
    UnsafePathError,
)
from detcore.plugins import PluginManager, StorageType
from detcore.storage import LocalStorage, open_storage
from detcore_storage import FsspecStorage


class FakePlugins:
    """A plugin manager with the only method that is called."""

    def __init__(self, **types: StorageType) -> None:
        self.types = types

    def storage_types(self) -> dict[str, StorageType]:
        return self.types


class Settings:
    """A plugin's settings."""

    def __init__(self, given: object) -> None:
        self.given = given

    @classmethod
    def from_url(cls, url: str) -> Settings:
        return cls(url)

    @classmethod
    def model_validate(cls, fields: dict[str, Any]) -> Settings:
        if "bucket" not in fields:
            raise ValueError("bucket: field required")
        return cls(fields)


class Backend(FsspecStorage):
    """A plugin's back end."""

    def __init__(self, settings: Settings) -> None:
        super().__init__("memory://plugin")
        self.settings = settings


@pytest.fixture
def plugins(monkeypatch: pytest.MonkeyPatch) -> Any:
    module: Any = types.ModuleType("storage_of_a_plugin")
    module.Settings, module.Backend = Settings, Backend
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return FakePlugins(
        bucket=StorageType(
            name="bucket",
            schemes=("bkt",),
            settings="storage_of_a_plugin:Settings",
            backend="storage_of_a_plugin:Backend",
        )
    )


def opened(spec: Any, home: Path, plugins: Any = None) -> Any:
    core = PluginManager(read_environment({"DETCORE_HOME": str(home), "DETCORE_PLUGINS": "core"}))
    return open_storage(spec, home=home, plugins=plugins or core)


def test_default_storage_is_below_home(tmp_path: Path) -> None:
    assert opened(None, tmp_path).root == tmp_path / "checkpoints"


@pytest.mark.parametrize(
    ("spec", "root"),
    [
        ("/data/runs", "/data/runs"),
        ("file:///data/runs/", "/data/runs"),
        ("file:///data/with%20space", "/data/with space"),
    ],
)
def test_paths_and_file_urls(tmp_path: Path, spec: str, root: str) -> None:
    storage = opened(spec, tmp_path)
    assert isinstance(storage, LocalStorage)
    assert storage.root == Path(root)
    assert opened(storage.url, tmp_path).root == Path(root)


def test_other_urls_are_opened_by_fsspec(tmp_path: Path) -> None:
    storage = opened("memory://runs/seven", tmp_path)
    assert type(storage) is FsspecStorage
    assert storage.url == "memory://runs/seven"


def test_url_without_plugin_names_the_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "detcore_storage", None)
    with pytest.raises(RunError, match=r"behind sftp:// URLs is part of detcore-storage") as caught:
        opened("sftp://user:secret@host/runs", tmp_path)
    assert "pip install 'detcore[storage]'" in str(caught.value)
    assert "secret" not in str(caught.value)
    assert opened(str(tmp_path), tmp_path).root == tmp_path


@pytest.mark.parametrize("key", ["shared_fs", "directory"])
def test_directory_types_open_local_storage(tmp_path: Path, key: str) -> None:
    field = "host_path" if key == "shared_fs" else "container_path"
    spec = {"type": key, field: str(tmp_path), "save_trial_best": 3, "save_trial_latest": 1}
    assert opened(spec, tmp_path).root == tmp_path


@pytest.mark.parametrize("storage_path", ["sub/dir", "{host}/sub/dir"])
def test_storage_path_is_below_host_path(tmp_path: Path, storage_path: str) -> None:
    spec = {
        "type": "shared_fs",
        "host_path": str(tmp_path),
        "storage_path": storage_path.format(host=tmp_path),
        "propagation": "rprivate",
    }
    assert opened(spec, tmp_path).root == tmp_path / "sub" / "dir"


@pytest.mark.parametrize("storage_path", ["../x", "a/../../x", "/elsewhere"])
def test_storage_path_outside_host_is_rejected(tmp_path: Path, storage_path: str) -> None:
    spec = {"type": "shared_fs", "host_path": str(tmp_path), "storage_path": storage_path}
    with pytest.raises(ConfigError, match="leads out of host_path"):
        opened(spec, tmp_path)


def test_unmounted_directory_is_detected(tmp_path: Path) -> None:
    spec = {"type": "shared_fs", "host_path": str(tmp_path / "absent")}
    with pytest.raises(ConfigError, match=r"absent does not exist.*\n.*\n.*mkdir -p"):
        opened(spec, tmp_path)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("", "is empty"),
        ("relative/path", "neither an absolute path nor a URL"),
        ("/data/../etc", r"component '\.\.'"),
        ("file://host/data", r"names a host, 'host'"),
        ("file:///data?x=1", "a query or a fragment"),
        ("file:///data#x", "a query or a fragment"),
        ("s3://bucket/a;b", "parameters"),
        ("s3://bucket/../other", r"component '\.\.'"),
        ("s3://bucket/%2e%2e/other", r"component '\.\.'"),
        ({"host_path": "/data"}, "has no 'type'; it has: host_path"),
        ({"type": 3}, "checkpoint_storage.type is 3"),
        ({"type": "shared_fs"}, "'shared_fs' cannot be used: host_path: Field"),
        (
            {"type": "shared_fs", "host_path": "relative"},
            "an absolute path, got 'relative'",
        ),
        ({"type": "shared_fs", "host_path": f"/{'a' * 300}"}, "does not exist"),
        ({"type": "shared_fs", "host_path": "/a/../b"}, r"component '\.\.'"),
        ({"type": "shared_fs", "host_path": "/", "bucket": "b"}, "bucket: .*not permitted"),
        ({"type": "directory"}, "container_path: Field required"),
        (7, "is a int; expected a path"),
    ],
)
def test_invalid_specification_raises_value_error(tmp_path: Path, spec: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        opened(spec, tmp_path)
    assert isinstance(caught.value, ValueError)


def test_path_with_nul_character_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(UnsafePathError, match="contains a NUL character"):
        opened("file:///data%00x", tmp_path)


def test_unknown_type_error_lists_types(tmp_path: Path) -> None:
    with pytest.raises(StorageTypeError, match=r"'s3'.\n.*directory, shared_fs") as caught:
        opened({"type": "s3", "bucket": "b"}, tmp_path)
    assert isinstance(caught.value, TypeError)
    assert "s3://BUCKET/PREFIX" in str(caught.value)
    assert "pip install 'detcore-storage[s3]'" in str(caught.value)


def test_unknown_scheme_error_lists_schemes(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"unknown URL scheme, 's4'\.\n.*: abfs, .* s3, "
    ) as caught:
        opened("s4://bucket/x", tmp_path).probe()
    assert "simplecache" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "package"),
    [
        ("abfs://container/x", "'detcore-storage[azure]'"),
        ("gs://bucket/x", "'detcore-storage[gcs]'"),
        ("s3://bucket/x", "s3fs"),
        ("smb://host/x", "smbprotocol"),
    ],
)
def test_missing_driver_names_the_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, url: str, package: str
) -> None:
    for module in ("adlfs", "gcsfs", "s3fs", "smbclient"):  # some environments have these packages
        monkeypatch.setitem(sys.modules, module, None)
    loaded = sys.modules["fsspec.registry"]._registry
    monkeypatch.delitem(loaded, url.partition(":")[0], raising=False)
    with pytest.raises(StorageError, match=r"needs a package.*\n.*[Ii]nstall") as caught:
        opened(url, tmp_path).probe()
    assert package in str(caught.value)


def test_plugin_types_take_precedence(tmp_path: Path, plugins: Any) -> None:
    by_type = opened({"type": "bucket", "bucket": "b", "save_trial_best": 1}, tmp_path, plugins)
    assert by_type.settings.given == {"bucket": "b"}
    assert opened("bkt://b/prefix", tmp_path, plugins).settings.given == "bkt://b/prefix"


def test_settings_rejected_by_plugin_raise(tmp_path: Path, plugins: Any) -> None:
    with pytest.raises(ConfigError, match=r"of type 'bucket' cannot be used: bucket: field"):
        opened({"type": "bucket"}, tmp_path, plugins)
