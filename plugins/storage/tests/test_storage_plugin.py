"""The plugin as detcore finds and uses it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from detcore.environment import read_environment
from detcore.errors import CheckFailedError, ConfigError
from detcore.hooks import PluginManager
from detcore.storage import LocalStorage, open_storage
from detcore_storage import DirectorySettings, SharedFsSettings


@pytest.fixture
def plugins(tmp_path: Path) -> PluginManager:
    return PluginManager(read_environment({"DETCORE_HOME": str(tmp_path)}))


def test_it_is_found_through_its_entry_point(plugins: PluginManager) -> None:
    types = plugins.storage_types()
    assert {"shared_fs", "directory"} <= set(types)
    assert types["shared_fs"].settings == "detcore_storage._settings:SharedFsSettings"
    assert not [p for p in plugins.problems() if "detcore-storage" in str(p)]


def test_registering_imports_nothing_of_weight() -> None:
    code = (
        "import detcore_storage.plugin as p, sys; p.detcore_register_storage();"
        "print([m for m in ('pydantic', 'fsspec', 'numpy') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


@pytest.mark.parametrize(
    ("fields", "below"),
    [
        ({"host_path": "{root}"}, ""),
        ({"host_path": "{root}", "storage_path": "runs/a"}, "runs/a"),
        ({"host_path": "{root}", "storage_path": "{root}/runs"}, "runs"),
        ({"host_path": "{root}", "propagation": "rprivate", "save_trial_best": 2}, ""),
        ({"host_path": "{root}", "checkpoint_path": "old", "tensorboard_path": None}, ""),
    ],
)
def test_shared_fs(
    tmp_path: Path, plugins: PluginManager, fields: dict[str, Any], below: str
) -> None:
    filled = {
        key: value.format(root=tmp_path) if isinstance(value, str) else value
        for key, value in fields.items()
    }
    storage = open_storage({"type": "shared_fs", **filled}, home=tmp_path, plugins=plugins)
    assert isinstance(storage, LocalStorage)
    assert storage.root == tmp_path / below
    storage.probe()


def test_directory(tmp_path: Path, plugins: PluginManager) -> None:
    spec = {"type": "directory", "container_path": str(tmp_path)}
    storage = open_storage(spec, home=tmp_path, plugins=plugins)
    assert storage.direct_path("") == tmp_path


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({}, "host_path: .*Field required"),
        ({"host_path": "relative"}, "'relative' is not absolute"),
        ({"host_path": "/a/../b"}, r"component '\.\.'"),
        ({"host_path": "/", "storage_path": 3}, "storage_path: .*valid string"),
        ({"host_path": "/", "bucket": "b"}, "bucket: .*not permitted"),
        ({"host_path": "/nonexistent/x"}, "/nonexistent/x is not there"),
    ],
)
def test_settings_that_cannot_be_used(
    tmp_path: Path, plugins: PluginManager, fields: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        open_storage({"type": "shared_fs", **fields}, home=tmp_path, plugins=plugins)


@pytest.mark.parametrize("storage_path", ["../x", "/elsewhere", "a/../../b"])
def test_a_storage_path_that_leads_out(
    tmp_path: Path, plugins: PluginManager, storage_path: str
) -> None:
    spec = {"type": "shared_fs", "host_path": str(tmp_path), "storage_path": storage_path}
    with pytest.raises(CheckFailedError, match="leads out of host_path"):
        open_storage(spec, home=tmp_path, plugins=plugins)


def test_settings_are_frozen(tmp_path: Path) -> None:
    shared = SharedFsSettings(host_path=str(tmp_path))
    directory = DirectorySettings(container_path=str(tmp_path))
    with pytest.raises(ValidationError, match="frozen"):
        shared.host_path = "/"  # type: ignore[misc]
    with pytest.raises(ValidationError, match="frozen"):
        directory.container_path = "/"  # type: ignore[misc]
