"""Saved files are restored, and other files are not changed."""

from __future__ import annotations

import json
import random
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from detcore.checkpoint import (
    MANIFEST_FILE,
    DownloadMode,
    list_committed,
)
from detcore.checkpoint.manifest import read_manifest
from detcore.errors import (
    CheckpointNotFoundError,
    InvalidCheckpointError,
)

META = {"steps_completed": 7, "note": "ü", "nested": {"list": [1, 2.5, None, True]}}


def test_upload_and_download(desk: Any, folder: Path, tmp_path: Path, tree: Any) -> None:
    before = tree(folder)
    uuid = desk.upload(folder, META)
    assert tree(folder) == before  # the user's folder is not written into
    desk.download(uuid, tmp_path / "back")
    after = tree(tmp_path / "back")
    assert json.loads(after.pop("metadata.json")) == META
    assert after == before
    assert (tmp_path / "back" / "empty" / "nested").is_dir()


def test_saves_are_recorded_and_observed(desk: Any, folder: Path) -> None:
    first = desk.upload(folder, META)
    second = desk.upload(folder, {"steps_completed": 9})
    record = desk.database.latest_checkpoint(desk.trial_id)
    assert record.uuid == second
    assert record.state == "COMPLETED"
    assert record.steps_completed == 9
    assert record.resources["weights.bin"] == 256 * 8_000
    assert record.resources["empty/nested/"] == 0
    assert record.storage_url == desk.storage.url
    assert [save.uuid for save in desk.saved] == [first, second]
    last_save = desk.saved[1]
    assert last_save.size_bytes == record.size_bytes
    assert last_save.url == f"{desk.storage.url}/{second}"
    assert sorted(list_committed(desk.storage)) == sorted([first, second])
    assert desk.get_metadata(first) == META
    assert desk.get_manifest(second).parent == first


def test_store_path_and_restore_path(desk: Any) -> None:
    with desk.store_path(META) as (path, uuid):
        assert desk.states() == {uuid: "ACTIVE"}
        assert list_committed(desk.storage) == []
        (path / "sub").mkdir()
        (path / "sub" / "w").write_bytes(b"weights")
        (path / "void").mkdir()
    assert desk.states() == {uuid: "COMPLETED"}
    with desk.restore_path(uuid) as restored:
        assert (restored / "sub" / "w").read_bytes() == b"weights"
        assert (restored / "void").is_dir()
        assert json.loads((restored / "metadata.json").read_text()) == META
    assert restored.exists() == (desk.storage.direct_path("") is not None)


def test_local_storage_yields_direct_paths(local_desk: Any) -> None:
    with local_desk.store_path(META) as (path, uuid):
        assert path == local_desk.storage.root / uuid
    with local_desk.restore_path(uuid) as restored:
        assert restored == path
    assert local_desk.saved[0].path == str(path)


@pytest.mark.parametrize("error", [ValueError("mine"), KeyboardInterrupt(), SystemExit(3)])
def test_failed_block_leaves_no_files(desk: Any, error: BaseException) -> None:
    def save() -> None:
        with desk.store_path(META) as (path, _):
            (path / "half").write_bytes(b"x" * 10_000)
            raise error

    with pytest.raises(type(error)):
        save()
    assert desk.storage.list() == []
    assert set(desk.states().values()) == {"DELETED"}
    assert desk.saved == []
    if desk.storage.direct_path("") is not None:
        assert list(desk.storage.root.iterdir()) == []


def test_metadata_file_of_user_is_kept(desk: Any, folder: Path, tmp_path: Path) -> None:
    (folder / "metadata.json").write_text('{"mine": 1}')
    uuid = desk.upload(folder, META)
    desk.download(uuid, tmp_path / "back")
    assert (tmp_path / "back" / "metadata.json").read_text() == '{"mine": 1}'
    assert desk.get_metadata(uuid) == META


def test_selectors(desk: Any, folder: Path, tmp_path: Path, tree: Any) -> None:
    names: list[str] = []

    def pick(name: str) -> bool:
        names.append(name)
        return name.startswith("variables/") or name == "empty/nested/"

    uuid = desk.upload(folder, META, selector=pick)
    assert names == ["link", "nothing", "variables/.hidden", "variables/a[0]", "weights.bin",
                     "empty/nested/"]  # fmt: skip
    manifest = desk.get_manifest(uuid)
    assert sorted(manifest.files) == ["metadata.json", "variables/.hidden", "variables/a[0]"]
    assert manifest.directories == ("empty/nested",)

    intact_uuid = desk.upload(folder, META)
    desk.download(intact_uuid, tmp_path / "some", selector=lambda name: name == "nothing")
    assert tree(tmp_path / "some") == {"nothing": b""}
    with desk.restore_path(intact_uuid, selector=lambda name: "a[" in name) as path:
        assert tree(path) == {"variables": None, "variables/a[0]": b"zero"}
    assert not path.exists()


def test_sharded_forms_work_with_one_worker(desk: Any, folder: Path) -> None:
    uuid = desk.upload(folder, META, shard=True)
    assert "weights.bin" in desk.get_manifest(uuid).files
    with desk.store_path(META, shard=True) as (path, uuid):
        (path / "shard-0").write_bytes(b"0")
    assert "shard-0" in desk.get_manifest(uuid).files
    with pytest.raises(InvalidCheckpointError, match="ckpt_dir=None on all workers"):
        desk.upload(None, META, shard=True)
    with pytest.raises(InvalidCheckpointError, match="was called without ckpt_dir"):
        desk.upload(None, META)
    with pytest.raises(InvalidCheckpointError, match="a selector but without ckpt_dir"):
        desk.upload(None, META, shard=True, selector=bool)


def test_download_modes(desk: Any, uuid: str, tmp_path: Path) -> None:
    for mode in DownloadMode:
        desk.download(uuid, tmp_path / mode.name, mode)
        assert (tmp_path / mode.name / "weights.bin").exists()
    with pytest.raises(InvalidCheckpointError, match="download_mode is 'SHARED'"):
        desk.download(uuid, tmp_path / "x", "SHARED")


def test_download_into_existing_folder(desk: Any, uuid: str, tmp_path: Path) -> None:
    target = tmp_path / "target"
    (target / "variables").mkdir(parents=True)
    (target / "variables" / "a[0]").write_text("old")
    (target / "mine").write_text("stays")
    desk.download(uuid, target)
    assert (target / "variables" / "a[0]").read_text() == "zero"
    assert (target / "mine").read_text() == "stays"
    assert not [path for path in target.rglob("*") if ".tmp-" in path.name]


def test_download_refuses_to_replace_folders(
    desk: Any, uuid: str, folder: Path, tmp_path: Path
) -> None:
    target = tmp_path / "target"
    (target / "weights.bin").mkdir(parents=True)
    with pytest.raises(InvalidCheckpointError, match=r"weights.bin is a directory"):
        desk.download(uuid, target)
    assert [path.name for path in target.iterdir()] == ["weights.bin"]
    with pytest.raises(InvalidCheckpointError, match=r"which is a file"):
        desk.download(uuid, folder / "nothing")


def test_failed_download_leaves_no_files(local_desk: Any, local_uuid: str, tmp_path: Path) -> None:
    (local_desk.storage.root / local_uuid / "nothing").unlink()
    with pytest.raises(Exception, match="nothing: is missing"):
        local_desk.download(local_uuid, tmp_path / "to" / "back")
    assert not (tmp_path / "to").exists()


def test_missing_checkpoint_is_an_error(desk: Any, tmp_path: Path) -> None:
    uuid = "00000000-0000-0000-0000-000000000000"
    calls: list[Callable[[], object]] = [
        lambda: desk.get_metadata(uuid),
        lambda: desk.download(uuid, tmp_path / "x"),
        lambda: desk.restore_path(uuid).__enter__(),
        lambda: desk.delete(uuid, globs=["*"]),
    ]
    for call in calls:
        with pytest.raises(
            CheckpointNotFoundError,
            match=rf"no committed checkpoint {uuid} in[\s\S]*has no files of it",
        ):
            call()


def test_checkpoint_requires_a_manifest(desk: Any, uuid: str) -> None:
    desk.storage.delete([f"{uuid}/manifest.json"])
    with pytest.raises(CheckpointNotFoundError, match=r"6 of its files, but no manifest"):
        desk.get_metadata(uuid)
    assert list_committed(desk.storage) == []


def test_manifest_deleted_after_listing_is_an_error(desk: Any) -> None:
    with pytest.raises(CheckpointNotFoundError, match="no committed checkpoint x"):
        read_manifest(desk.storage, "x", sizes={MANIFEST_FILE: 100})


def test_saving_keeps_random_state(desk: Any, folder: Path) -> None:
    random.seed(5)
    state = random.getstate()
    desk.upload(folder, META)
    with desk.store_path(META) as (path, uuid):
        (path / "x").write_text("")
    with desk.restore_path(uuid):
        pass
    assert random.getstate() == state


def test_files_have_default_mode(local_desk: Any, local_uuid: str) -> None:
    mode = (local_desk.storage.root / local_uuid / "weights.bin").stat().st_mode
    assert stat.S_IMODE(mode) & 0o111 == 0


def test_manifest_records_versions(desk: Any, folder: Path) -> None:
    desk.versions["tensorflow"] = "2.15.1"
    versions = desk.get_manifest(desk.upload(folder, META)).versions
    assert versions["tensorflow"] == "2.15.1"
    assert versions["detcore"]
